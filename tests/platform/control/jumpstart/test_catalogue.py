"""The catalogue of JumpStart, the objects and documents made from it, and containers that name its bucket."""

import json
import os
import re
from pathlib import Path

import pytest

from headrace.core.errors import SettingsError
from headrace.platform.control.jumpstart import specs
from headrace.platform.control.jumpstart.catalogue import Catalogue, open_catalogue, read_rows, shipped_rows
from headrace.platform.control.jumpstart.located import hints, located

REGION = "eu-west-3"
ROWS = """
a-llm-small = { model = "/models/small", server = "tgi", version = "3.1.0", oldest = 2, environment = { A = "1" } }
a-llm-gated = { model = "owner/gated", gated = true }
a-sold-one = { server = "marketplace" }
"""
WRONG = {
    "= ": "is not TOML",
    "a = 1": "a in file is 1; expected a row",
    'a = { modle = "x" }': "Did you mean model?",
    'a = { model = "x", foo = 1 }': "foo is not known. Known are model, server",
    "a = { model = 1 }": "model is 1; expected a string",
    'a = { model = "x", gated = 1 }': "gated is 1; expected true or false",
    'a = { model = "x", oldest = true }': "oldest is True; expected a number",
    'a = { model = "x", environment = "x" }': "expected a table of strings",
    'a = { model = "x", environment = { A = 1 } }': "a variable of environment is no string",
    'a = { model = "x", is_own = true }': "is_own is not known",
    "a = {}": "has no model",
    'a = { model = "x", server = "x" }': "expected one of tgi, lmi",
    'a = { model = "x", version = "1.0" }': "expected three numbers",
    '"a_b" = { model = "x" }': "is not an id",
}


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    path = tmp_path / "jumpstart.toml"
    path.write_text(ROWS)
    return open_catalogue(path, path)


def test_shipped_rows_name_models_of_the_hub_and_one_of_the_marketplace() -> None:
    rows = shipped_rows()
    assert len(rows) > 100
    assert [row.model_id for row in rows.values() if row.is_marketplace]
    assert [
        row.model for row in rows.values() if not row.is_marketplace and not re.fullmatch(r"[\w.-]+/[\w.-]+", row.model)
    ] == []
    assert {row.model_id.split("-")[0] for row in rows.values()} >= {"deepseek", "huggingface", "meta", "openai"}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_row_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(WRONG[text])):
        read_rows(text, source="file")


def test_the_file_is_read_again_when_it_changes_and_ignored_while_it_is_wrong(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    path = tmp_path / "jumpstart.toml"
    assert catalogue.rows["a-llm-small"].is_own
    for text, model in (('b-x = { model = "y" }', "y"), ("b-x = ", "y"), ('b-x = { model = "zz" }', "zz")):
        path.write_text(text)
        os.utime(path, ns=(0, len(text)))
        assert catalogue.rows["b-x"].model == model
    path.unlink()
    assert "b-x" not in catalogue.rows
    with pytest.raises(SettingsError, match="cannot be read"):
        open_catalogue(path, path)
    assert open_catalogue(None, path).rows == shipped_rows()


def content(catalogue: Catalogue, key: str) -> object:
    body = specs.bucket_content(catalogue.rows, key, region=REGION)
    return None if body is None else json.loads(body)


def test_each_header_of_a_manifest_leads_to_a_spec(catalogue: Catalogue) -> None:
    for name in (specs.MANIFEST, specs.MARKETPLACE_MANIFEST):
        for header in content(catalogue, name):
            spec = content(catalogue, header["spec_key"])
            assert (spec["model_id"], spec["version"]) == (header["model_id"], header["version"])
    versions = [
        header["version"] for header in content(catalogue, specs.MANIFEST) if header["model_id"] == "a-llm-small"
    ]
    assert versions == ["2.0.0", "3.1.0"]


def test_a_spec_has_the_image_the_files_and_the_licence_of_its_row(catalogue: Catalogue) -> None:
    small = content(catalogue, "community_models/a-llm-small/specs_v3.1.0.json")
    assert small["hosting_prepacked_artifact_key"] == "a-llm/a-llm-small/artifacts/inference-prepack/v3.1.0/"
    assert "tgi" in small["hosting_instance_type_variants"]["regional_aliases"][REGION]["image"]
    assert {"A": "1"}.items() <= {
        item["name"]: item["default"] for item in small["inference_environment_variables"]
    }.items()
    assert small["gated_bucket"] is False
    gated = content(catalogue, "community_models/a-llm-gated/specs_v1.0.0.json")
    assert gated["gated_bucket"] is True
    assert b"owner/gated" in specs.bucket_content(catalogue.rows, gated["hosting_eula_key"], region=REGION)


@pytest.mark.parametrize(
    "key",
    ["", "x", "community_models/", "community_models/a-llm-small/specs_v1.0.0.json", "fmhMetadata/eula/none.txt"],
)
def test_other_objects_are_not_in_the_bucket(catalogue: Catalogue, key: str) -> None:
    assert specs.bucket_content(catalogue.rows, key, region=REGION) is None


def container(key: str, **environment: str) -> dict[str, object]:
    source = {"S3Uri": f"s3://{key}", "S3DataType": "S3Prefix", "CompressionType": "None"}
    return {"Image": "i", "ModelDataSource": {"S3DataSource": source}, "Environment": environment}


def test_a_container_that_names_files_of_the_bucket_gets_the_model_of_the_row(catalogue: Catalogue) -> None:
    files = "artifacts/inference-prepack/v1.0.0/"
    given = {"HF_MODEL_ID": "/opt/ml/model", "OPTION_MODEL_ID": "/opt/ml/model/x", "SM_NUM_GPUS": "1"}
    for bucket in ("jumpstart-cache-prod-eu-west-3", "jumpstart-private-cache-prod-us-gov-west-1"):
        found, notices = located(container(f"{bucket}/a-llm/a-llm-small/{files}", **given), catalogue)
        assert found == {"Image": "i", "Environment": {"HF_MODEL_ID": "/models/small", "SM_NUM_GPUS": "1"}}
        assert "headrace jumpstart add a-llm-small --model" in hints(["other", *notices])[0]
    kept, _ = located(
        container(f"jumpstart-cache-prod-eu-west-3/a-llm/a-llm-small/{files}", HF_MODEL_ID="x/y"), catalogue
    )
    assert kept["Environment"] == {"HF_MODEL_ID": "x/y"}
    others = (f"a-bucket/a-llm/a-llm-small/{files}", f"jumpstart-cache-prod-eu-west-3/a-llm/unknown/{files}")
    for other in (*others, f"jumpstart-cache-prod-eu-west-3/a-sold/a-sold-one/{files}"):
        assert located(container(other), catalogue) == (container(other), ())
