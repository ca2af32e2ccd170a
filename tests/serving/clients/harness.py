"""Run lm-evaluation-harness on a server. `make test-serve` runs this file in .venv-serve, which has no bytelm.

The argument is a JSON file: `tasks`, the folder of the tasks, and `runs`, a list of model arguments by name. Prints the
harness's response to each request as JSON: {run: {task: [response, ...]}}.
"""

import json
import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager


def main() -> None:
    wanted = json.loads(Path(sys.argv[1]).read_text())
    manager = TaskManager(include_path=wanted["tasks"], include_defaults=False)
    found = {}
    for name, (tasks, arguments) in wanted["runs"].items():
        batch_size = arguments.pop("batch_size", 1)
        results = simple_evaluate(
            "local-completions",
            model_args=arguments,
            tasks=tasks,
            batch_size=batch_size,
            task_manager=manager,
            log_samples=True,
            bootstrap_iters=0,
        )
        found[name] = {
            task: [sample["resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]
            for task, samples in results["samples"].items()
        }
        found[name]["metrics"] = {task: results["results"][task] for task in tasks}
    print(json.dumps(found, default=str))


main()
