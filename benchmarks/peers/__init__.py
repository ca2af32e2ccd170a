"""The peers of the tokenizer benchmark: their distributions, and how to set their number of threads."""

from importlib.metadata import PackageNotFoundError, version

OURS = "bytelm"
DISTRIBUTIONS = {
    OURS: "bytelm",
    "gigatoken": "gigatoken",
    "gigabpe": "gigabpe",
    "ffbpe": "ffbpe",
    "rustbpe": "rustbpe",
    "tokenizers": "tokenizers",
    "bpeasy": "bpeasy",
    "sentencepiece": "sentencepiece",
    "fastokens": "fastokens",
    "snaptokens": "snaptokens",
    "nanotoken": "nanotoken",
    "tokie": "tokie",
    "splintr": "splintr-rs",  # the distribution "splintr" is another package
    "quicktok": "quicktok-v1",  # the distribution "quicktok" is another package
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
    """Return environment variables that set the number of threads and disable downloads and caches.

    Byte code is written for sources that pip did not install, as pip does for those that it installs.
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
