"""
The data capture of batch transform jobs: manifests of inputs and outputs, and the inference ids of outputs. Pure.

Source: SageMaker developer guide, "Capture data from batch transform job".
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from headrace.platform.control.model.transform_job import output_type
from headrace.platform.jobs.inputs import InputFile
from headrace.platform.jobs.processing import ProcessingFailed
from headrace.platform.state.records import Json

MANIFEST_TYPE: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceIds:
    """Appends to each record of an answer an id of its own and the start of the job."""

    started_s: float
    is_csv: bool
    is_by_line: bool
    """Each line of an answer is a record."""

    @classmethod
    def of(cls, members: Json, *, is_by_line: bool, started_s: float) -> "InferenceIds | None":
        """Return what `DataCaptureConfig` asks for; `is_by_line`: each line of a request is a record."""
        if not (members.get("DataCaptureConfig") or {}).get("GenerateInferenceId"):
            return None
        kind = output_type(members)
        is_csv = "csv" in kind
        return cls(started_s=started_s, is_csv=is_csv, is_by_line=is_by_line or is_csv or "jsonlines" in kind)

    def append(self, answer: bytes) -> bytes:
        """Return an answer with the ids of its records. Raises `ProcessingFailed`."""
        try:
            text = answer.decode()
            if not self.is_by_line:
                return self._identified(text).encode()
            lines = [self._identified(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise ProcessingFailed(f"Fail to append an inference id to an output that is not JSON: {error}.") from None
        return "".join(f"{line}\n" for line in lines).encode()

    def _identified(self, record: str) -> str:
        inference_id, started = str(uuid4()), f"{datetime.fromtimestamp(self.started_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
        if self.is_csv:
            return f"{record},{inference_id},{started}"
        output = json.loads(record)
        own = output if isinstance(output, dict) else {"SageMakerOutput": output}
        added = {"SageMakerInferenceId": inference_id, "SageMakerInferenceTime": started}
        return json.dumps({**own, **added}, ensure_ascii=False, separators=(",", ":"))


def manifests(
    job: str, members: Json, inputs: Sequence[InputFile], ended: Mapping[int, str], *, started_s: float
) -> dict[str, bytes]:
    """Return the manifests of a job's objects that have an output, by their addresses; none if there are none."""
    config = members.get("DataCaptureConfig")
    captured = [file for number, file in enumerate(inputs) if ended.get(number) == ""]
    if config is None or not captured:
        return {}
    outputs = f"{members['TransformOutput']['S3OutputPath'].rstrip('/')}/"
    names = [file.output_uri.removeprefix(outputs) for file in captured]
    sources = [name.removesuffix(".out") for name in names]
    folder = f"{datetime.fromtimestamp(started_s, UTC):%Y/%m/%d/%H}"
    return {
        f"{config['DestinationS3Uri'].rstrip('/')}/{kind}/{folder}/{job}.jsonl": json.dumps(
            [{"prefix": prefix}, *listed], ensure_ascii=False
        ).encode()
        for kind, prefix, listed in (
            ("input", captured[0].uri.removesuffix(sources[0]), sources),
            ("output", outputs, names),
        )
    }
