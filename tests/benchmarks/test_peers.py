"""The installed peers, and the description of them in results."""

from pathlib import Path

import pytest
from benchmarks.peers.environments import is_current
from benchmarks.peers.manifest import InstalledPeer, Manifest, read_manifest, write_manifest
from benchmarks.peers.models import FORMS, wanted_forms
from benchmarks.peers.peers import PEERS, choose_peers


def installed(requirements, python):
    return InstalledPeer(python=str(python), tools=None, requirements=requirements, versions={"a": "1"})


def test_a_manifest_round_trips(tmp_path):
    manifest = Manifest(peers={}, models={}).with_peer("vllm", installed(("vllm==1",), "/bin/python"))
    manifest = manifest.with_model("hf-bf16", Path("/models/hf"))
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_an_empty_folder_has_no_peers(tmp_path):
    assert read_manifest(tmp_path) == Manifest(peers={}, models={})


def test_a_peer_is_reinstalled_when_its_pins_change_or_its_folder_is_missing(tmp_path):
    peer = PEERS[0]
    python = tmp_path / "python"
    python.touch()
    assert is_current(installed(peer.requirements, python), peer)
    assert not is_current(installed(("older==1",), python), peer)
    assert not is_current(installed(peer.requirements, tmp_path / "gone"), peer)


def test_every_version_is_pinned():
    assert all("==" in requirement for peer in PEERS for requirement in peer.requirements)


def test_an_unknown_peer_is_refused_by_name():
    with pytest.raises(KeyError, match=r"'torch'.*vllm"):
        choose_peers(["torch"])


def test_forms_are_made_by_existing_peers_and_after_their_sources():
    assert {form.maker for form in FORMS if form.maker} <= {peer.name for peer in PEERS}
    names = [form.name for form in wanted_forms(["openvino"])]
    assert names[0] == "hf-bf16"
    assert not wanted_forms([])
