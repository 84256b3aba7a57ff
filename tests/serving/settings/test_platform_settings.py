"""Settings of the platform come from flags and `HEADRACE_UP_*`, and do not affect the model server."""

from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.serving.settings.docs import setting_rows
from headrace.serving.settings.loading import load_settings
from headrace.serving.settings.platform_settings import PlatformSettings, data_folder, load_platform_settings


@pytest.mark.parametrize("cluster", ["local", "ray", "10.0.0.1:6379", "ray://head:10001"])
def test_a_cluster_is_local_ray_or_the_address_of_a_ray_cluster(cluster: str) -> None:
    assert load_platform_settings({"cluster": cluster}, {}).cluster == cluster


def test_a_flag_takes_precedence_over_the_environment() -> None:
    settings = load_platform_settings(
        {"port": "1", "host": None}, {"HEADRACE_UP_PORT": "2", "HEADRACE_UP_STRICT": "yes"}
    )
    assert (settings.port, settings.strict, settings.host) == (1, True, "127.0.0.1")


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"HEADRACE_UP_PROT": "1"}, "Did you mean HEADRACE_UP_PORT"),
        ({"HEADRACE_UP_PORT": "x"}, "HEADRACE_UP_PORT is 'x'; expected a whole number from 0 to 65535"),
        ({"HEADRACE_UP_ACCOUNT": "12"}, "12 digits"),
        ({"HEADRACE_UP_REGION": "mars"}, "region is 'mars'; expected the name of an AWS region such as us-east-1"),
        ({"HEADRACE_UP_S3_ENDPOINT": "minio:9000"}, "http:// or https://"),
        ({"HEADRACE_UP_S3_ENDPOINT": "http://host:99999"}, "http:// or https://"),
        ({"HEADRACE_UP_CLUSTER": "Ray"}, "cluster is 'Ray'; expected local, ray (to start a Ray cluster here)"),
        ({"HEADRACE_UP_CLUSTER": "10.0.0.1"}, "such as 10.0.0.1:6379 or ray://10.0.0.1:10001"),
        ({"HEADRACE_UP_CLUSTER": "ray://"}, "cluster is 'ray://'; expected"),
        ({"HEADRACE_UP_CLUSTER": "ray://head:99999"}, "cluster is 'ray://head:99999'; expected"),
    ],
)
def test_a_bad_value_is_one_sentence(env: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_platform_settings({}, env)
    assert said in caught.value.message


SHARED = {"database": "postgresql://db/x", "s3_endpoint": "http://s3:9000"}


@pytest.mark.parametrize(
    ("advertise", "host"),
    [("10.0.0.1", "10.0.0.1"), ("Node-1.example.com:8000", "node-1.example.com"), ("[fd00::1]:80", "fd00::1")],
)
def test_a_platform_listens_on_the_address_that_it_advertises(advertise: str, host: str) -> None:
    settings = load_platform_settings({"advertise": advertise, **SHARED}, {})
    assert (settings.host, settings.is_spread, settings.is_local) == (host, True, False)
    assert load_platform_settings({"advertise": advertise, "host": "0.0.0.0", **SHARED}, {}).host == "0.0.0.0"
    assert not load_platform_settings({}, {}).is_spread


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(
            ({"advertise": text}, "expected HOST or HOST:PORT")
            for text in ("0.0.0.0", "fd00::1", "a b", "a/b", "a:0", "a:")
        ),
        ({"database": None}, "database is not a URL of PostgreSQL"),
        ({"database": "sqlite:///x"}, "database is not a URL of PostgreSQL"),
        ({"s3_endpoint": None}, "s3_endpoint is not the URL of an S3 server"),
        ({"host": "127.0.0.1"}, "host is 127.0.0.1, which other machines cannot reach"),
        ({"cluster": "ray"}, "a Ray cluster of this machine only"),
        ({"containers": "true"}, "containers is on, and advertise is '10.0.0.1'"),
    ],
)
def test_a_platform_on_several_machines_needs_what_all_of_them_reach(change: dict[str, str | None], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_platform_settings({"advertise": "10.0.0.1", **SHARED, **change}, {})


def test_the_model_server_ignores_settings_of_the_platform() -> None:
    settings, _ = load_settings({"model": "echo"}, {"HEADRACE_UP_PORT": "1"})
    assert settings.port == 8080


@pytest.mark.parametrize(
    ("overrides", "is_local"),
    [({}, True), ({"host": "0.0.0.0"}, False), ({"require_keys": "true"}, False), ({"host": "::1"}, True)],
)
def test_only_on_a_loopback_address_may_keys_be_generated_or_switched_off(
    overrides: dict[str, str], is_local: bool
) -> None:
    assert load_platform_settings(overrides, {}).is_local is is_local
    if is_local:
        assert load_platform_settings(overrides, {"HEADRACE_UP_OPEN": "true"}).open
    else:
        with pytest.raises(SettingsError, match=r"open is on, and .*; expected open off there"):
            load_platform_settings({**overrides, "open": "true"}, {})


def test_data_are_stored_in_the_users_data_folder(tmp_path: Path) -> None:
    settings = PlatformSettings()
    assert data_folder(settings, {"XDG_DATA_HOME": str(tmp_path)}) == tmp_path / "headrace"
    assert data_folder(settings, {}) == Path("~/.local/share/headrace").expanduser()
    assert data_folder(PlatformSettings(data_dir=tmp_path), {}) == tmp_path


def test_a_database_url_is_not_shown() -> None:
    assert "secret" not in repr(PlatformSettings(database="postgresql://me:secret@host/db"))


def test_every_setting_has_a_row_in_the_docs() -> None:
    rows = setting_rows(PlatformSettings)
    assert all(row.help and row.env.startswith("HEADRACE_UP_") for row in rows)
    assert load_platform_settings({}, {row.env: "" for row in rows}) == PlatformSettings()
