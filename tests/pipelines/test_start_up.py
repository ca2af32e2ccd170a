"""Verbs import only what they need, and find mistakes before they import PyTorch or numba."""

import json
import re
import subprocess
import sys

CODE = """
import json, sys
from pipelines.cli.dispatch import main

for command in json.loads(sys.argv[1]):
    status = main(command)
    if status:
        raise SystemExit(status)
    found = [name for name in ("torch._dynamo", "sympy", "pandas", "matplotlib") if name in sys.modules]
    print("imported after", command[0], found)
"""


def imported(*commands):
    """Run commands in one process; return a line for each with the large libraries imported so far."""
    words = [sys.executable, "-c", CODE, json.dumps([[*map(str, command)] for command in commands])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("imported after")]


def test_training_does_not_import_torch_compile_or_pandas(tmp_path, dataset_folder):
    shape = ("--model.layers", 1, "--model.width", 32, "--model.heads", 2, "--model.context-length", 32)
    length = ("--train.tokens", 2048, "--train.batch-tokens", 512)
    pretrain = ("pretrain", "gpt-tiny", "--data", dataset_folder, *shape, *length)
    found = imported(
        *((*pretrain, "--out", tmp_path / name, "--train.optimizer", name) for name in ("adamw", "muon")),
        ("evaluate", tmp_path / "adamw"),
        ("generate", tmp_path / "adamw", "--prompt", "import", "--tokens", 3),
    )
    assert found == [f"imported after {verb} []" for verb in ("pretrain", "pretrain", "evaluate", "generate")]


def test_training_a_tokenizer_does_not_import_pandas(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 99)
    found = imported(("train-tokenizer", text, "--vocab-size", 270, "--out", tmp_path / "tokenizer"))
    assert found == ["imported after train-tokenizer []"]


EARLY = """
import contextlib, io, json, sys
from pipelines.cli.dispatch import main

for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = main(command)
        except SystemExit as leaving:
            status = leaving.code
    slow = [name for name in ("torch", "numba", "matplotlib") if name in sys.modules]
    if slow or not status:
        raise SystemExit(f"bytelm {' '.join(command)}: status {status}, imported {slow}: {errors.getvalue()}")
    print(errors.getvalue().splitlines()[-1])
"""

# A mistake of each kind, by verb. RUN is a decoder, BERT an encoder, DATA a dataset, TEXT a file of text in FOLDER,
# FILE a file that is no folder, NONE a path where nothing is.
MISTAKES = """
train-tokenizer NONE --vocab-size 400 --out OUT
train-tokenizer TEXT --vocab-size 400 --out OUT --pattern foo(
train-tokenizer TEXT --vocab-size 400 --out OUT --compare NONE
build-dataset TEXT --tokenizer NONE --context-length 64 --out OUT
train NONE --out OUT
train TEXT --out OUT --kind llama
train TEXT --out FILE/x
demo --out OUT --minutes -1
pretrain gpt-tinny --data DATA --out OUT
pretrain gpt-tiny --data NONE --out OUT
pretrain gpt-tiny --data DATA --out OUT
pretrain gpt-tiny --data DATA --out OUT --train.device gpu
pretrain gpt-tiny --data DATA --out OUT --train.dtype float8
pretrain gpt-tiny --data DATA --out OUT --model.width 33
pretrain gpt-tiny --data DATA --out OUT --init-from NONE
pretrain --out NONE
params gpt3
params gpt2 --optimizer sgd
sweep-vocabulary NONE --out OUT
sweep-vocabulary TEXT --out OUT --recipe gpt-tinny
sweep-vocabulary TEXT --out OUT --workers 0
sweep-vocabulary TEXT --out OUT --recipe bert-tiny
sweep-vocabulary TEXT --out OUT --flops 0
sweep-vocabulary TEXT --out OUT --flops 5
sweep-vocabulary TEXT --out OUT --seeds 0
sweep-vocabulary TEXT --out OUT --split none
sweep-vocabulary TEXT --out FILE
sweep-vocabulary TEXT --out FILE/x
sweep-vocabulary TEXT --out DATA
sweep-vocabulary FOLDER --out OUT --suffix .nothing
scale NONE --budget 2h --out OUT
scale TEXT --budget 2x --out OUT
scale TEXT --budget 1h --out OUT --recipe bert-tiny
scale TEXT --budget 1h --out FILE
scale TEXT --budget 1h --out DATA
finetune NONE --data LABELLED --out OUT
finetune BERT --data NONE --out OUT
finetune BERT --data TEXT --out OUT
finetune BERT --data LABELLED --out OUT --columns text stars
finetune BERT --data LABELLED --out OUT --task clases
predict RUN text
embed NONE TEXT --out OUT.npy
embed RUN NONE --out OUT.npy
embed RUN TEXT --out OUT
embed RUN TEXT --out OUT.npy --layer 9
embed RUN TEXT --out OUT.npy --pooling max
entropy NONE
entropy TEXT --unit words
entropy TEXT --unit tokens --tokenizer NONE
entropy FOLDER --suffix .nothing
evaluate NONE
evaluate RUN NONE
evaluate RUN --data NONE
evaluate RUN --corpus NONE
evaluate RUN --corpus FOLDER --suffix .nothing
evaluate RUN --splits test
evaluate RUN --stride 1000
evaluate RUN --min-context 1000
evaluate RUN --against NONE
evaluate RUN --checkpoint last
evaluate RUN --checkpoint 777
evaluate RUN --device gpu
evaluate RUN --dtype float16
evaluate RUN --data FOLDER
evaluate RUN --against BERT
evaluate RUN --min-context 0
evaluate RUN --unit word
evaluate RUN --compressors --corpus TEXT
evaluate RUN --memorisation --memory 3
score NONE text
score RUN text --checkpoint 777
score RUN --file NONE
score RUN text --top -1
score RUN text --choices a --stride 3
score RUN text --parquet FOLDER
score BERT text --choices a
score RUN text --stride 1000
score RUN text --target text
score RUN text --masking word
score BERT text --rolling
score RUN text --parquet FILE/x
generate NONE
generate RUN --checkpoint last
generate RUN --top-p 3
generate RUN --temperature -1
generate RUN --tokens 0
generate RUN --dtype float16
generate BERT --prompt <|mask|> --prompt <|mask|>
generate RUN --beams 4
generate BERT --prompt text
generate BERT --prompt <|mask|> --tokens 3
serve NONE
serve RUN --port 99999
serve RUN --checkpoint 777
serve RUN --token-file NONE
serve RUN --host 999.1.1.1
serve RUN RUN
report NONE
report RUN NONE
report RUN --out FILE/x
report RUN --out FOLDER
export-hf NONE --out OUT
export-hf RUN --out DATA
export-hf RUN --out FILE/x
export-hf RUN --out OUT --checkpoint last
export-onnx NONE --out OUT
export-onnx RUN --out OUT --checkpoint last
export-onnx RUN --out FOLDER
export-onnx RUN --out FILE/x
export-gguf NONE --out OUT
export-gguf RUN --out OUT --checkpoint last
export-gguf RUN --out FOLDER
export-gguf RUN --out FILE/x
import-gguf NONE --out OUT
import-gguf FOLDER --out OUT
import-hf NONE --out OUT
import-hf DATA --out OUT
""".strip().splitlines()


def test_a_mistake_of_each_kind_is_found_before_slow_imports(tmp_path, trained_gpt, trained_bert, dataset_folder):
    (tmp_path / "text.txt").write_text("A text.")
    (tmp_path / "labelled.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    paths = {"RUN": trained_gpt, "BERT": trained_bert, "DATA": dataset_folder, "TEXT": tmp_path / "text.txt"}
    paths |= {"LABELLED": tmp_path / "labelled.jsonl", "FILE": tmp_path / "text.txt"}
    paths |= {"FOLDER": tmp_path, "NONE": tmp_path / "none", "OUT": tmp_path / "out"}
    pattern = re.compile("|".join(rf"\b{name}\b" for name in paths))
    commands = [[pattern.sub(lambda name: str(paths[name[0]]), word) for word in line.split()] for line in MISTAKES]
    words = [sys.executable, "-c", EARLY, json.dumps(commands)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(MISTAKES)
    assert not (tmp_path / "out").exists()
