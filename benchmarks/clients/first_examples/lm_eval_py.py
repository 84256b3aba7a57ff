import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import MODEL, SERVER, TOKENIZER, expect, step

TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_text: "The capital of {{country}} is"
doc_to_choice: ["Paris", "Rome"]
doc_to_target: label
metric_list: [{metric: acc}]
""",
    "capital": """
output_type: generate_until
doc_to_text: "What is the capital of {{country}}?"
doc_to_target: "{{['Paris', 'Rome'][label]}}"
generation_kwargs: {until: ["."], max_gen_toks: 16}
metric_list: [{metric: exact_match}]
""",
}
ROWS = '{"country": "France", "label": 0}\n{"country": "Italy", "label": 1}\n'


def evaluate(model: str, route: str, tasks: str, *flags: str, **more: str) -> None:
    """Run tasks by the command line of lm-eval."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.jsonl")
        data.write_text(ROWS, encoding="utf-8")
        for name, text in TASKS.items():
            head = (
                f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test"
            )
            Path(folder, f"{name}.yaml").write_text(head + text, encoding="utf-8")
        settings = {"model": MODEL, "base_url": f"{SERVER}{route}", "num_concurrent": "2", **more}
        model_args = ",".join(f"{name}={value}" for name, value in settings.items())
        arguments = ["--model", model, "--model_args", model_args, "--include_path", folder, "--tasks", tasks, *flags]
        done = subprocess.run(
            [sys.executable, "-m", "lm_eval", "run", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "-"},
        )
        expect(done.returncode == 0 and all(task in done.stdout for task in tasks.split(",")), done.stderr[-400:])


with step("local-completions, multiple choice and generation, tokenizer_backend=remote"):
    evaluate("local-completions", "/v1/completions", "choice,capital", tokenizer_backend="remote")
with step("local-completions, a tokenizer, --apply_chat_template"):
    # lm-eval itself cannot apply a chat template to multiple choices with the tokenizer of a server, its default.
    own = {"tokenizer": TOKENIZER, "tokenizer_backend": "huggingface"}
    evaluate("local-completions", "/v1/completions", "choice,capital", "--apply_chat_template", **own)
with step("local-chat-completions, --apply_chat_template"):
    evaluate("local-chat-completions", "/v1/chat/completions", "capital", "--apply_chat_template")
