"""
Write the image URIs that the SageMaker SDK (sagemaker 2.x) returns for model servers of language models into
`tests/platform/control/model/image_uris.txt`, where a test reads them whether the SDK is installed or not.

python scripts/image_uris.py            write them; needs `pip install "sagemaker<3"`
python scripts/image_uris.py --check    exit 1 if the file differs from the SDK
"""

import argparse
import contextlib
import functools
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
os.environ.setdefault("SAGEMAKER_SUPPRESS_V2_WARNING", "1")

from sagemaker import image_uris, utils

FILE = Path(__file__).parent.parent / "tests" / "platform" / "control" / "model" / "image_uris.txt"
REGION = "us-east-1"
FRAMEWORKS = (
    "djl-deepspeed",
    "djl-fastertransformer",
    "djl-lmi",
    "djl-neuronx",
    "djl-tensorrtllm",
    "huggingface",
    "huggingface-llm",
    "huggingface-llm-neuronx",
    "huggingface-vllm-neuronx",
    "pytorch",
)
INSTANCE_TYPES = ("ml.g5.xlarge", "ml.c5.xlarge", "ml.c6g.xlarge", "ml.inf1.xlarge", "ml.inf2.xlarge")
TOOLS = {"ml.inf1.xlarge": "neuron", "ml.inf2.xlarge": "neuronx"}
SCOPES = ("inference", "inference_graviton")
HEAD = f"""\
# Framework, version and image URI in {REGION}, as sagemaker.image_uris.retrieve (sagemaker {{version}}) gives them.
# Made by scripts/image_uris.py.
"""


def versions(framework: str, instance_type: str, scope: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each version of a framework with its entry in the SDK's table."""
    name = framework
    if framework in {"huggingface", "pytorch"} and "inf" in instance_type:
        name = f"{framework}-neuron{'x' if 'inf2' in instance_type else ''}"
    with contextlib.suppress(FileNotFoundError):
        config = image_uris.config_for_framework(name)
        yield from config.get(scope, config).get("versions", {}).items()


def arguments(entry: dict[str, Any]) -> Iterator[dict[str, str | None]]:
    """Yield the other arguments that name one image of a version."""
    bases = [key for key in entry if key.startswith("pytorch")]
    for base in bases or [None]:
        inner = entry if base is None else entry[base]
        for python in inner.get("py_versions") or [None]:
            yield {"py_version": python, "base_framework_version": base}


def uris() -> Iterator[tuple[str, str, str]]:
    """Yield framework, version and URI of every image that the SDK returns for an endpoint."""
    for framework in FRAMEWORKS:
        for instance_type in INSTANCE_TYPES:
            tool = TOOLS.get(instance_type) if framework.startswith("huggingface") else None
            for scope in SCOPES:
                for version, entry in versions(framework, instance_type, scope):
                    for more in arguments(entry):
                        with contextlib.suppress(ValueError, KeyError):
                            uri = image_uris.retrieve(
                                framework,
                                REGION,
                                version=version,
                                instance_type=instance_type,
                                image_scope=scope,
                                inference_tool=tool,
                                **more,
                            )
                            yield framework, version, uri


def main() -> int:
    """Write the file, or compare it with the SDK."""
    import sagemaker

    logging.disable()
    # The SDK would read botocore's table of endpoints for each of some 600 images, which takes half a minute.
    utils._botocore_resolver = functools.cache(utils._botocore_resolver)  # noqa: SLF001
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    lines = [" ".join(found) + "\n" for found in sorted(set(uris()))]
    text = HEAD.format(version=sagemaker.__version__) + "".join(lines)
    if not parser.parse_args().check:
        FILE.write_text(text, encoding="utf-8")
        return 0
    found = FILE.read_text(encoding="utf-8")
    if found.splitlines()[2:] == text.splitlines()[2:]:
        return 0
    print(f"{FILE} is not what sagemaker {sagemaker.__version__} says; run scripts/image_uris.py.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
