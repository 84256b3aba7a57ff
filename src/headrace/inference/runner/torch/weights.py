"""
The weights of one rank on its device, streamed from the memory-mapped checkpoint.

On CUDA threads copy pieces of the file into pinned buffers while earlier pieces cross the bus, so that reading from the
disk, copying and the conversion on the device overlap. Formats of blocks (GGUF) are decoded on the CPU.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.core.progress import Progress, no_progress
from headrace.inference.models.decoding import cut_numbers, decode
from headrace.inference.models.shapes import expected_shapes
from headrace.inference.models.spec import ModelSpec
from headrace.inference.models.ternary import ternary_as_q4_1
from headrace.inference.models.weights import Encoding, RawTensor, WeightSource
from headrace.inference.runner.torch.layers import ExpertLinear, Head, Linear
from headrace.inference.runner.torch.matmul import (
    Int4Weight,
    ScaledWeight,
    Weight,
    on_top,
    pack_int4,
    pack_int8,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
)
from headrace.inference.runner.torch.parallel import Shard, cut_of

_TASK: Final = "Loading weights"
_BUFFER_BYTES: Final = 64 << 20
_NUM_BUFFERS: Final = 4
_PLAIN: Final = {Encoding.F32: torch.float32, Encoding.F16: torch.float16, Encoding.BF16: torch.bfloat16}


class Uploader:
    """Copies arrays to a device; call `close` at the end."""

    def __init__(
        self, device: torch.device, *, buffer_bytes: int = _BUFFER_BYTES, num_buffers: int = _NUM_BUFFERS
    ) -> None:
        self.device = device
        is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_cuda else None
        self._buffers = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=is_cuda) for _ in range(num_buffers)]
        self._copied: list[torch.cuda.Event | None] = [None] * num_buffers
        self._threads = ThreadPoolExecutor(num_buffers, thread_name_prefix="headrace-weights")

    def upload(self, data: npt.NDArray[np.uint8]) -> Tensor:
        """Return the bytes (C-contiguous) in a new tensor on the device; later work on the device waits for them."""
        source = data.reshape(-1)
        target = torch.empty(source.size, dtype=torch.uint8, device=self.device)
        size = len(self._buffers[0])
        pieces = iter(range(0, source.size, size))
        filling: deque[tuple[int, int, Future[None]]] = deque()
        for slot, start in zip(range(len(self._buffers)), pieces, strict=False):
            filling.append((slot, start, self._fill(slot, source[start : start + size])))
        while filling:
            slot, start, filled = filling.popleft()
            filled.result()
            self._send(slot, target[start : start + size])
            if (following := next(pieces, None)) is not None:
                filling.append((slot, following, self._fill(slot, source[following : following + size])))
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return target

    def close(self) -> None:
        self._threads.shutdown()
        if self._stream is not None:
            self._stream.synchronize()
        self._buffers = []

    def _fill(self, slot: int, piece: npt.NDArray[np.uint8]) -> "Future[None]":
        return self._threads.submit(_copy, self._buffers[slot], piece, self._copied[slot])

    def _send(self, slot: int, target: Tensor) -> None:
        buffer = self._buffers[slot][: len(target)]
        if self._stream is None:
            target.copy_(buffer)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))  # the target may reuse memory still in use
        with torch.cuda.stream(self._stream):
            target.copy_(buffer, non_blocking=True)
            self._copied[slot] = event = torch.cuda.Event()
            event.record(self._stream)


def _copy(buffer: Tensor, piece: npt.NDArray[np.uint8], copied: "torch.cuda.Event | None") -> None:
    """Fill a buffer once its earlier content has crossed the bus."""
    if copied is not None:
        copied.synchronize()
    buffer.numpy()[: piece.size] = piece


class RankWeights:
    """The weights that one rank holds, loaded on demand."""

    def __init__(
        self,
        spec: ModelSpec,
        source: WeightSource,
        uploader: Uploader,
        *,
        shard: Shard,
        dtype: torch.dtype,
        matrix_format: str,
        is_invariant: bool = False,
        progress: Progress = no_progress,
    ) -> None:
        """
        Create a loader; weights are read when they are requested.

        `dtype` is the format of vectors, tables and activations, `matrix_format` (plain, fp8, w8a8 or w4a16) that of
        the matrices of layers. `is_invariant`: matrix products do not depend on the number of rows.
        """
        self._spec = spec
        self._source = source
        self._uploader = uploader
        self._device = uploader.device
        self._shard = shard
        self._dtype = dtype
        self._format = matrix_format
        self._is_invariant = is_invariant
        self._progress = progress
        self._names = set(source.names())
        self._total = sum(rows * columns for rows, columns in expected_shapes(spec).values())
        self._loaded = 0
        self._tables: dict[str, Tensor] = {}
        progress(_TASK, 0, self._total, "weights")

    def vector(self, name: str) -> Tensor | None:
        """Return a vector in float32, or None if the network has none of this name or another rank has it."""
        if name not in self._names:
            return None
        tensor = self._load(name)
        return None if tensor is None else self._floats(tensor).flatten().float()

    def table(self, name: str) -> Tensor:
        if name not in self._tables:
            tensor = self._load(name)
            assert tensor is not None
            self._tables[name] = self._floats(tensor).to(self._dtype)
        return self._tables[name]

    def linear(self, *names: str) -> Linear:
        """Return matrices with the same input as one, with their biases."""
        tensors = [tensor for name in names if (tensor := self._load(name)) is not None]
        weight, num_rows = on_top([self._packed(tensor) for tensor in tensors]), [tensor.num_rows for tensor in tensors]
        stops = np.cumsum(num_rows).tolist()
        parts = {name: slice(stop - rows, stop) for name, rows, stop in zip(names, num_rows, stops, strict=True)}
        return Linear(weight, self._biases(names), parts, is_invariant=self._is_invariant)

    def experts(self, prefix: str, num_experts: int, *parts: str) -> ExpertLinear:
        """Return the matrices `{prefix}{expert}.{part}`, those of an expert as one, with their biases."""
        names = [f"{prefix}{expert}.{part}" for expert in range(num_experts) for part in parts]
        weight = on_top([self._packed(tensor) for name in names if (tensor := self._load(name)) is not None])
        bias = self._biases(names)
        return ExpertLinear(
            weight, None if bias is None else bias.view(num_experts, -1), is_invariant=self._is_invariant
        )

    def head(self, name: str) -> Head:
        """Return the LM head, which may be the table of the embeddings, with its bias."""
        return Head(self.table(name), self.vector("lm_head_bias"), is_invariant=self._is_invariant)

    def router(self, name: str) -> Linear:
        tensor = self._load(name)
        assert tensor is not None
        weight = self._floats(tensor).float()
        return Linear(weight, self.vector(f"{name}_bias"), {}, is_invariant=self._is_invariant)

    def _packed(self, tensor: RawTensor) -> Weight:
        """Return a matrix in the format of the runner, unchanged if the file stores it in that format."""
        if self._format == "w4a16" and tensor.encoding is Encoding.TERNARY:
            tensor = ternary_as_q4_1(tensor)
        if self._format == "w4a16" and tensor.encoding in {Encoding.Q4_0, Encoding.Q4_1}:
            int4 = pack_int4(tensor)
            minima = None if int4.minima is None else int4.minima.to(self._device)
            return Int4Weight(int4.values.to(self._device), int4.scales.to(self._device), minima)
        if self._format == "w4a16":
            return quantize_int4(self._floats(tensor))
        if self._format == "w8a8" and tensor.encoding is Encoding.I8:
            weight = pack_int8(tensor)
            return ScaledWeight(weight.values.to(self._device), weight.scales.to(self._device))
        matrix = self._floats(tensor).to(self._dtype)
        if self._format == "fp8":
            return quantize_fp8(matrix)
        return quantize_int8(matrix) if self._format == "w8a8" else matrix

    def _biases(self, names: Sequence[str]) -> Tensor | None:
        """Return the biases of matrices next to each other, or None if they have none or another rank has them."""
        biases = [bias for name in names if (bias := self.vector(f"{name}_bias")) is not None]
        return torch.cat(biases).to(self._dtype) if biases else None

    def _load(self, name: str) -> RawTensor | None:
        tensor = self._source.load(name)
        self._loaded += tensor.num_rows * tensor.num_columns
        self._progress(_TASK, self._loaded, self._total, "weights")
        cut = cut_of(name, self._spec, self._shard)
        return None if cut is None else cut_numbers(tensor, *cut)

    def _floats(self, tensor: RawTensor) -> Tensor:
        """Return a tensor on the device, in float32 unless it is stored in a 16-bit type."""
        if (dtype := _PLAIN.get(tensor.encoding)) is None:
            data, dtype = decode(tensor).view(np.uint8), torch.float32
        else:
            data = tensor.data
        flat = self._uploader.upload(np.ascontiguousarray(data)).view(dtype)
        return flat.view(tensor.num_rows, tensor.num_columns)
