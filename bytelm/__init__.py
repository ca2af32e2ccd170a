"""bytelm: train a tokenizer and a transformer on your own text, and measure how well the model predicts.

    import bytelm

    run = bytelm.load_run("runs/gpt")
    print(run.generate("The quick brown fox", tokens=20))
    logits = run.logits("The quick brown fox")  # (tokens, vocabulary), float32

Every verb of the command line is a function here: `bytelm.pretrain("gpt-tiny", data="data", out="runs/gpt")`. The
functions return their results and print nothing, unless called inside `with bytelm.show():`. Names are imported when
they are first used, so `import bytelm` takes milliseconds.
"""

import sys

TYPE_CHECKING = False  # without importing `typing`
if TYPE_CHECKING:
    from pipelines.cli.display import show
    from pipelines.generation.answers import answer
    from pipelines.recipes.recipe import load_recipe
    from pipelines.run.loaded_run import LoadedRun, load_run
    from pipelines.scoring.choices import rank_choices
    from pipelines.scoring.minimal_pairs import score_pairs
    from pipelines.scoring.questions import score_questions
    from pipelines.scoring.texts import score_text
    from pipelines.verbs.build_dataset import build_dataset
    from pipelines.verbs.carry_over import carry_over
    from pipelines.verbs.chat import chat
    from pipelines.verbs.dataset import verify_dataset
    from pipelines.verbs.demo import demo
    from pipelines.verbs.embed import embed
    from pipelines.verbs.entropy import entropy
    from pipelines.verbs.evaluate import evaluate
    from pipelines.verbs.export_gguf import export_gguf
    from pipelines.verbs.export_hf import export_hf
    from pipelines.verbs.export_onnx import export_onnx
    from pipelines.verbs.figures import figures
    from pipelines.verbs.finetune import finetune
    from pipelines.verbs.generate import generate
    from pipelines.verbs.grow_vocabulary import grow_vocabulary
    from pipelines.verbs.import_gguf import import_gguf
    from pipelines.verbs.import_hf import import_hf
    from pipelines.verbs.inspect import inspect
    from pipelines.verbs.inspect_vocabulary import inspect_vocabulary
    from pipelines.verbs.params import params
    from pipelines.verbs.predict import predict
    from pipelines.verbs.pretrain import pretrain
    from pipelines.verbs.report import report
    from pipelines.verbs.runs import runs
    from pipelines.verbs.scale import scale
    from pipelines.verbs.score import score
    from pipelines.verbs.serve import serve
    from pipelines.verbs.sweep_vocabulary import sweep_vocabulary
    from pipelines.verbs.tokenize import tokenize
    from pipelines.verbs.train import train
    from pipelines.verbs.train_tokenizer import train_tokenizer
    from pipelines.verbs.trim_vocabulary import trim_vocabulary
    from tokenizer import Tokenizer

    __version__: str


def _refuse_other_packages() -> None:
    """Raise ImportError if Python would import another package in the place of one of bytelm's."""
    folder = __file__.removesuffix("__init__.py").rstrip("/\\").removesuffix("bytelm")
    for name in ("tokenizer", "lm", "corpora", "pipelines"):
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        specs = (find(name, None) for find in finders if find)
        spec = getattr(sys.modules.get(name), "__spec__", None) or next(filter(None, specs), None)
        if spec is not None and spec.origin and not spec.origin.startswith(folder):
            raise ImportError(
                f"bytelm has a package {name}, but Python finds {spec.origin} first: rename that {name}, or start "
                "Python in another folder"
            )


_refuse_other_packages()

# Modules of the other names. A verb's function has the name of its module in `pipelines.verbs`.
_HOMES = {
    "LoadedRun": "pipelines.run.loaded_run",
    "Tokenizer": "tokenizer",
    "answer": "pipelines.generation.answers",
    "load_recipe": "pipelines.recipes.recipe",
    "load_run": "pipelines.run.loaded_run",
    "rank_choices": "pipelines.scoring.choices",
    "score_pairs": "pipelines.scoring.minimal_pairs",
    "score_questions": "pipelines.scoring.questions",
    "score_text": "pipelines.scoring.texts",
    "show": "pipelines.cli.display",
    "verify_dataset": "pipelines.verbs.dataset",
}

__all__ = [
    "LoadedRun",
    "Tokenizer",
    "answer",
    "build_dataset",
    "carry_over",
    "chat",
    "demo",
    "embed",
    "entropy",
    "evaluate",
    "export_gguf",
    "export_hf",
    "export_onnx",
    "figures",
    "finetune",
    "generate",
    "grow_vocabulary",
    "import_gguf",
    "import_hf",
    "inspect",
    "inspect_vocabulary",
    "load_recipe",
    "load_run",
    "params",
    "predict",
    "pretrain",
    "rank_choices",
    "report",
    "runs",
    "scale",
    "score",
    "score_pairs",
    "score_questions",
    "score_text",
    "serve",
    "show",
    "sweep_vocabulary",
    "tokenize",
    "train",
    "train_tokenizer",
    "trim_vocabulary",
    "verify_dataset",
]


if not TYPE_CHECKING:  # a type checker would take every unknown name for an object

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from pipelines import own_version

            return own_version()
        if name not in __all__:
            raise AttributeError(f"module 'bytelm' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES.get(name, f"pipelines.verbs.{name}")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
