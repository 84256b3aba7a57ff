"""
Install the engines that Headrace is compared with, and create the model files that they read.

    python -m benchmarks.peers.install                  all of them
    python -m benchmarks.peers.install vllm llamacpp    some

Each gets its own virtual environment in `--root`, outside the project. Existing parts are kept.
"""

import fcntl
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.results import make_parser
from benchmarks.peers.environments import StepFailed, install, is_current
from benchmarks.peers.manifest import DEFAULT_ROOT, InstalledPeer, Manifest, read_manifest, write_manifest
from benchmarks.peers.models import Form, make_form, wanted_forms
from benchmarks.peers.peers import Peer, choose_peers

from headrace.core.errors import HeadraceError
from headrace.core.progress import no_progress
from headrace.inference.models.sources import home_folder, locate

_BUILD_NOTE = " (compiled here, which takes minutes)"


def main() -> None:
    """Install the peers that the command line names; exit 1 if something failed, after doing the rest."""
    options = parse_arguments()
    try:
        peers = choose_peers(options.names)
        source = locate(options.model, revision=None, home=home_folder(os.environ), progress=no_progress)
    except (KeyError, HeadraceError) as error:
        sys.exit(str(error.args[0]))
    root = options.root.expanduser()
    _, failures = install_peers(peers, root, source.path, model_name=source.name)
    sys.exit("\n\n".join(failures) or 0)


def parse_arguments() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("names", nargs="*", help="transformers, llamacpp, openvino, vllm; all without a name")
    parser.add_argument("--root", type=Path, default=DEFAULT_ROOT, help="folder for everything that is installed")
    parser.add_argument("--model", default="smollm2", help="a GGUF file, or an alias of one")
    return parser.parse_args()


def install_peers(peers: Iterable[Peer], root: Path, source: Path, *, model_name: str) -> tuple[Manifest, list[str]]:
    """
    Install peers and create their model files; one that fails does not stop the others.

    Returns:
        The manifest, and one text per failure.
    """
    root.mkdir(parents=True, exist_ok=True)
    names = {peer.name for peer in peers}
    forms = wanted_forms(names)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifest, failures = read_manifest(root).with_model("gguf", source), []
        for peer in choose_peers(names.union(form.maker for form in forms if form.maker)) if names else ():
            try:
                manifest = manifest.with_peer(peer.name, _ready(peer, root, manifest))
            except StepFailed as error:
                failures.append(f"{peer.name}: {error}")
            write_manifest(root, manifest)
        for form in forms:
            try:
                manifest = manifest.with_model(form.name, _made(form, manifest, source, root, model_name))
            except (StepFailed, KeyError) as error:
                failures.append(f"{form.name}: {error}")
        write_manifest(root, manifest)
    return manifest, failures


def _ready(peer: Peer, root: Path, manifest: Manifest) -> InstalledPeer:
    installed = manifest.peers.get(peer.name)
    if installed is not None and is_current(installed, peer):
        return installed
    note = _BUILD_NOTE if peer.from_source else ""
    with _announced(f"{peer.name}: {', '.join(peer.requirements)}{note}"):
        return install(peer, root)


def _made(form: Form, manifest: Manifest, source: Path, root: Path, model_name: str) -> Path:
    with _announced(f"{model_name} as {form.name}"):
        return make_form(form, manifest, source, root / "models" / model_name, root / "logs" / f"{form.name}.log")


@contextmanager
def _announced(task: str) -> Iterator[None]:
    print(f"{task} …", flush=True)
    started_s = time.perf_counter()
    yield
    print(f"  {time.perf_counter() - started_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
