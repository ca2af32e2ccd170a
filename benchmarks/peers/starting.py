"""The shortest program of each peer that loads a vocabulary and prints the ids of a text.

Each takes three arguments: the vocabulary's ranks, its tokenizer.json, and the pattern as tiktoken writes it.
"""

from benchmarks.peers import OURS

TEXT = "hello world"

# Lower bounds: programs that only import.
FLOORS = {
    "python": "pass",
    "import numpy": "import numpy",
    "import numba": "import numba",
}

PROGRAMS: dict[tuple[str, str], str] = {
    (OURS, ".tiktoken"): """
from tokenizer import Tokenizer
print(Tokenizer.load(ranks, pattern="cl100k").encode(text), flush=True)
""",
    (OURS, "tokenizer.json"): """
from tokenizer import Tokenizer
print(Tokenizer.load(json).encode(text), flush=True)
""",
    (OURS, "tokenizer.json that was not read before"): """
import os
os.environ["BYTELM_CACHE"] = ""
from tokenizer import Tokenizer
print(Tokenizer.load(json).encode(text), flush=True)
""",
    ("tiktoken", ".tiktoken"): """
import tiktoken
from tiktoken.load import load_tiktoken_bpe
ranks = load_tiktoken_bpe(ranks)
encoding = tiktoken.Encoding("cl100k", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
print(encoding.encode(text), flush=True)
""",
    ("tokenizers", "tokenizer.json"): """
from tokenizers import Tokenizer
print(Tokenizer.from_file(json).encode(text).ids, flush=True)
""",
    ("gigatoken", ".tiktoken"): """
import gigatoken
print(gigatoken.Tokenizer.from_tiktoken(ranks, "cl100k", {}).encode(text).tolist(), flush=True)
""",
    ("splintr", ".tiktoken"): """
import splintr
print(splintr.Tokenizer(ranks, splintr.CL100K_BASE_PATTERN).encode(text), flush=True)
""",
    ("fastokens", ".tiktoken"): """
from fastokens import Tokenizer
print(Tokenizer.from_tiktoken(ranks, encoding="cl100k_base", special_tokens={}).encode(text).ids, flush=True)
""",
    ("tokie", "tokenizer.json"): """
import tokie
print(tokie.Tokenizer.from_json(json).encode(text).ids, flush=True)
""",
    ("quicktok", "built in"): """
import quicktok
print(quicktok.get_encoding("cl100k_base").encode(text), flush=True)
""",
    ("riptoken", ".tiktoken"): """
import riptoken
print(riptoken.CoreBPE(riptoken.load_tiktoken_bpe(ranks), {}, pattern).encode_ordinary(text), flush=True)
""",
    ("rs-bpe", "built in"): """
from rs_bpe.bpe import openai
print(openai.cl100k_base().encode(text), flush=True)
""",
}


def program(source: str) -> str:
    return f"import sys\nranks, json, pattern = sys.argv[1:]\ntext = {TEXT!r}\n{source}"
