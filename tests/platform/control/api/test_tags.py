"""Tags of resources, called with boto3."""

from tests.platform.control.calls import make_model, refusal
from tests.platform.control.support import Platform


def test_tags_are_added_listed_and_removed(still_platform: Platform) -> None:
    client = still_platform.client("sagemaker")
    arn = make_model(client, "My-Model", Tags=[{"Key": "a", "Value": "1"}])
    added = client.add_tags(ResourceArn=arn, Tags=[{"Key": "b", "Value": "2"}, {"Key": "a", "Value": "3"}])["Tags"]
    assert added == [{"Key": "a", "Value": "3"}, {"Key": "b", "Value": "2"}]
    client.delete_tags(ResourceArn=arn, TagKeys=["a", "c"])
    assert client.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "b", "Value": "2"}]
    assert "Could not find" in refusal(client.list_tags, ResourceArn=arn + "x")
    many = [{"Key": f"k{number}", "Value": ""} for number in range(50)]
    assert "at most 50" in refusal(client.add_tags, ResourceArn=arn, Tags=many)
