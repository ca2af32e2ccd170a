"""The names of the encodings of OpenAI's models. Source: tiktoken 0.14, model.py."""

from __future__ import annotations

from fnmatch import fnmatchcase

# The models of each encoding. A * stands for the rest of a name; an exact name takes precedence.
_MODELS = {
    "o200k_base": "o1 o1-* o3 o3-* o4-mini o4-mini-* gpt-5* gpt-4.5-* gpt-4.1 gpt-4.1-* gpt-4o gpt-4o-* chatgpt-4o-* "
    "ft:gpt-4o*",
    "cl100k_base": "gpt-4 gpt-4-* gpt-3.5 gpt-3.5-turbo gpt-3.5-turbo-* gpt-35-turbo gpt-35-turbo-* davinci-002 "
    "babbage-002 text-embedding-ada-002 text-embedding-3-small text-embedding-3-large ft:gpt-4* ft:gpt-3.5-turbo* "
    "ft:davinci-002* ft:babbage-002*",
    "o200k_harmony": "gpt-oss-*",
    "p50k_base": "text-davinci-003 text-davinci-002 code-davinci-002 code-davinci-001 code-cushman-002 "
    "code-cushman-001 davinci-codex cushman-codex",
    "p50k_edit": "text-davinci-edit-001 code-davinci-edit-001",
    "r50k_base": "text-davinci-001 text-curie-001 text-babbage-001 text-ada-001 davinci curie babbage ada "
    "text-similarity-davinci-001 text-similarity-curie-001 text-similarity-babbage-001 text-similarity-ada-001 "
    "text-search-davinci-doc-001 text-search-curie-doc-001 text-search-babbage-doc-001 text-search-ada-doc-001 "
    "code-search-babbage-code-001 code-search-ada-code-001",
    "gpt2": "gpt2 gpt-2",
}


def encoding_name_for_model(model: str) -> str:
    """Return the name of the encoding of a model of OpenAI, such as "o200k_base" for "gpt-4o".

    `Tokenizer.load` reads the file of this name, such as o200k_base.tiktoken. Raises ValueError for an unknown model.
    """
    patterns = [(encoding, name) for encoding, names in _MODELS.items() for name in names.split()]
    for encoding, name in patterns:
        if model == name:
            return encoding
    for encoding, name in patterns:
        if isinstance(model, str) and name.endswith("*") and fnmatchcase(model, name):
            return encoding
    raise ValueError(f"no encoding is known for the model {model!r}: load the file of a vocabulary")
