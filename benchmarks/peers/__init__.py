"""The tokenizers that we are measured beside: which distribution brings each, and how it is told its threads."""

from importlib.metadata import PackageNotFoundError, version

OURS = "bytelm"
DISTRIBUTIONS = {
    OURS: "bytelm",
    "gigatoken": "gigatoken",
    "ffbpe": "ffbpe",
    "rustbpe": "rustbpe",
    "tokenizers": "tokenizers",
    "bpeasy": "bpeasy",
    "sentencepiece": "sentencepiece",
    "fastokens": "fastokens",
    "tokie": "tokie",
    "splintr": "splintr-rs",  # what is called splintr is another package
    "quicktok": "quicktok-v1",  # what is called quicktok is another package
    "riptoken": "riptoken",
    "rs-bpe": "rs-bpe",
    "tiktoken": "tiktoken",
}


def installed_version(peer: str) -> str | None:
    try:
        return version(DISTRIBUTIONS[peer])
    except PackageNotFoundError:
        return None


def environment(threads: int) -> dict[str, str]:
    """What tells libraries that take no argument for it how many threads to use; nothing is fetched or left behind.

    Byte code is kept of sources that pip did not install, as pip keeps it of those that it did.
    """
    return {
        "PYTHONDONTWRITEBYTECODE": "",
        "RAYON_NUM_THREADS": str(threads),
        "FASTOKENS_BPE_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TIKTOKEN_CACHE_DIR": "",
    }
