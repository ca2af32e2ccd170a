"""What is wrong with a command line, in one sentence.

tyro says it in a box: a title in its border, and sections between rules, of which the first says what is wrong. That is
text for people and no interface, so what is not recognised below is passed on as it is, on one line.
"""

import re
from difflib import get_close_matches

LONG_WORD = 40  # one that ends a full line is taken to go on in the next: tyro breaks what is longer than a line


def _choices(match: re.Match[str]) -> str:
    given, name, choices = match.groups()
    known = choices.split(", ")
    if "'None'" in known:  # of an option that may be left out: a set, in no order
        known = sorted(set(known) - {"'None'"})
    return f"{name} is {given!r}: choose one of {', '.join(known)}"


# What tyro says of one argument, and what we say.
_REPHRASED = [
    (r"Error parsing (\S+): .*Got errors: - .*?: input length \d+ did not match.*", r"\1 needs more values"),
    (r"Error parsing (\S+): .*Got errors: - <class '\w+'>: (.*)", r"\1: \2"),
    (r"Error parsing ([^\sa-z]\S*): (.*)", r"\1: \2"),
    (r"Error parsing \S+: (.*)", r"\1"),  # a whole table, whose error names the field
    (r"[Ii]nvalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*?),?\)\.", _choices),
    (r"Missing value for argument '(.*)'\. .*", r"\1 needs a value"),
]


def sentence(box: str, prog: str) -> str:
    """The sentence for what tyro printed of a command line of `prog` that it refused."""
    sections = _sections(box)
    if not sections:
        return " ".join(box.split())
    lines, *others = sections
    said = " ".join(" ".join(lines).split())
    wrong = []
    if said.startswith("Missing from "):
        missing = [line.strip() for line in lines[1:] if not line.startswith("     ")]
        wrong.append(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        said = next((" ".join(section) for section in others if section[0].startswith("Unrecognized")), "")
    if said.startswith("Unrecognized options:"):
        wrong.append(_unrecognized(said, others))
    if wrong:
        return f"{', and '.join(wrong)}: `{prog} --help` lists all options"
    for theirs, ours in _REPHRASED:
        said, times = re.subn(f"^{theirs}$", ours, said)
        if times:
            break
    return said


def _sections(box: str) -> list[list[str]]:
    """The lines within the box, by section, indented as they are. One without a border (where the terminal has no
    characters to draw it with) begins with its title."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()
    bordered = [line[1:-1] for line in lines if line.startswith("│")]
    texts = [(line if bordered else line[1:]).removeprefix(" ").rstrip() for line in bordered or lines]
    full = max(map(len, texts), default=0)
    sections: list[list[str]] = [[]]
    broken = False
    for text in texts:
        if text and not text.strip("─- "):
            sections.append([])
        elif broken:
            sections[-1][-1] += text.strip()
        elif text:
            sections[-1].append(text)
        broken = bool(sections[-1]) and len(text) == full and len(text.rpartition(" ")[2]) >= LONG_WORD
    return [section for section in (sections if bordered else sections[1:]) if section]


def _unrecognized(said: str, others: list[list[str]]) -> str:
    words = said.removeprefix("Unrecognized options:").replace(",", " ").split()
    unknown = [word.partition("=")[0] for word in words if word.startswith("-")]
    if not unknown:
        return f"{' '.join(words)!r} is more than is asked for"
    similar = [section for section in others if not section[0].startswith("Unrecognized")]
    lines = [line.strip() for section in similar for line in section if line.strip().startswith("--")]
    offered = [word.rstrip(",") for line in lines for word in line.split() if word.startswith("--")]
    nearest = get_close_matches(unknown[0], offered, n=1, cutoff=0.0)
    return f"there is no option {' and '.join(unknown)}" + (f" (did you mean {nearest[0]}?)" if nearest else "")
