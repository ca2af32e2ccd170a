#!/bin/sh
# Try an installed bytelm in an empty folder, from text to a model's loss: tests/try_package.sh FOLDER-OF-COMMANDS
set -eu
bin=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$bin/bytelm" --version
"$bin/bytelm" params gpt2 --json > params.json
"$bin/bytelm" train-tokenizer stdlib --vocab-size 512 --out tok --quiet
"$bin/bytelm" build-dataset stdlib --tokenizer tok --context-length 256 --out data --quiet
"$bin/bytelm" pretrain gpt-tiny --data data --out run --train.tokens 20k --train.warmup-tokens 1k --quiet
"$bin/bytelm" evaluate run --json > evaluation.json
"$bin/bytelm" report run --out report.html --quiet
"$bin/python" -c "import bytelm; print(bytelm.Tokenizer.load('tok').encode('Hello, world'))"
