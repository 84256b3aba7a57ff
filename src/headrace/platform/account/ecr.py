"""ECR: repositories as records, and their images, which clients push and pull by the platform's registry."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.platform.account.context import AccountCall
from headrace.platform.account.image_store import ImageStore, Manifest
from headrace.platform.account.resource import Pages, Refusal, Resource, StoredRecord, stored_kind
from headrace.platform.cloudwatch.api.context import CloudWatchCall
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Paginator
from headrace.serving.wire.aws.tags import list_tags

USER: Final = "AWS"
"""The user of a registry's credentials."""
TOKEN_S: Final = 12 * 3600
"""Source: ECR API reference, GetAuthorizationToken."""


def _invalid(why: str) -> AwsError:
    return AwsError("InvalidParameterException", why)


_PAGES: Final = Pages(
    paginator=Paginator(member="nextToken", invalid_token=lambda: _invalid("The nextToken is not one of this list.")),
    size_member="maxResults",
)


def _show(context: CloudWatchCall, record: StoredRecord) -> Json:
    assert isinstance(context, AccountCall)
    return {
        "registryId": context.aws_scope.account,
        "repositoryUri": f"{context.url.partition('://')[2]}/{record.name}",
    }


REPOSITORIES: Final = Resource(
    kind=stored_kind("ecr-repository"),
    word="repository",
    key="repositoryName",
    list_member="repositories",
    arn="ecr:{region}:{account}:repository/{name}",
    names=("repositoryName", "resourceArn"),
    pages=_PAGES,
    absent=Refusal("RepositoryNotFoundException", "The repository with name '{name}' does not exist in the registry"),
    present=Refusal(
        "RepositoryAlreadyExistsException", "The repository with name '{name}' already exists in the registry"
    ),
    full=Refusal("LimitExceededException", "There are {most} repositories already; delete some first."),
    invalid=Refusal("InvalidParameterException", "{why}"),
    most=10_000,
    arn_member="repositoryArn",
    created_member="createdAt",
    separator=":repository/",
    defaults={"imageTagMutability": "MUTABLE"},
    shown=_show,
)


def describe_repositories(context: AccountCall, params: Json) -> Json:
    if not params.get("repositoryNames"):
        return REPOSITORIES.list(context, params)
    found = [REPOSITORIES.get(context, {"repositoryName": name}) for name in params["repositoryNames"]]
    return {"repositories": [each["repository"] for each in found]}


def delete_repository(context: AccountCall, params: Json) -> Json:
    found = REPOSITORIES.get(context, params)
    name = params["repositoryName"]
    if context.images.manifests(name) and not params.get("force"):
        message = f"The repository with name '{name}' cannot be deleted because it still contains images"
        raise AwsError("RepositoryNotEmptyException", message)
    REPOSITORIES.delete(context, params)
    context.images.delete_repository(name)
    return found


def list_tags_for_resource(context: AccountCall, params: Json) -> Json:
    return {"tags": list_tags(REPOSITORIES.find(context, params).tags)}


def list_images(context: AccountCall, params: Json) -> Json:
    name = REPOSITORIES.find(context, params).name
    tags, status = context.images.tags(name), params.get("filter", {}).get("tagStatus", "ANY")
    tagged = [{"imageDigest": digest, "imageTag": tag} for tag, digest in tags.items()]
    untagged = [{"imageDigest": digest} for digest in context.images.manifests(name) if digest not in tags.values()]
    listed = {"ANY": tagged + untagged, "TAGGED": tagged, "UNTAGGED": untagged}[status]
    items = sorted((f"{each['imageDigest']} {each.get('imageTag', '')}", each) for each in listed)
    return _PAGES.answer(items, params, member="imageIds")


def describe_images(context: AccountCall, params: Json) -> Json:
    name = REPOSITORIES.find(context, params).name
    manifests, tags = context.images.manifests(name), context.images.tags(name)
    if params.get("imageIds"):
        wanted = [_found(context.images, name, image_id) for image_id in params["imageIds"]]
        absent = next((image_id for image_id, found in zip(params["imageIds"], wanted, strict=True) if not found), None)
        if absent is not None:
            message = f"The image with imageId {_shown(absent)} does not exist within the repository with name '{name}'"
            raise AwsError("ImageNotFoundException", message)
        manifests = {found.digest: found for found in wanted if found is not None}
    status = params.get("filter", {}).get("tagStatus", "ANY")
    details = sorted(
        (digest, _detail(context, name, manifest, [tag for tag, tagged in tags.items() if tagged == digest]))
        for digest, manifest in manifests.items()
        if status == "ANY" or (digest in tags.values()) is (status == "TAGGED")
    )
    return _PAGES.answer(details, params, member="imageDetails")


def _detail(context: AccountCall, name: str, manifest: Manifest, tags: list[str]) -> Json:
    return {
        "registryId": context.aws_scope.account,
        "repositoryName": name,
        "imageDigest": manifest.digest,
        **({"imageTags": tags} if tags else {}),
        "imageSizeInBytes": manifest.num_bytes,
        "imagePushedAt": manifest.pushed_s,
        "imageManifestMediaType": manifest.media_type,
    }


def batch_get_image(context: AccountCall, params: Json) -> Json:
    name = REPOSITORIES.find(context, params).name
    images: list[Json] = []
    failures: list[Json] = []
    for image_id in params["imageIds"]:
        found = _found(context.images, name, image_id)
        if found is None:
            failures.append(_failure(image_id))
            continue
        images.append(
            {
                "registryId": context.aws_scope.account,
                "repositoryName": name,
                "imageId": {**image_id, "imageDigest": found.digest},
                "imageManifest": found.body.decode(errors="replace"),
                "imageManifestMediaType": found.media_type,
            }
        )
    return {"images": images, "failures": failures}


def batch_delete_image(context: AccountCall, params: Json) -> Json:
    """Answer BatchDeleteImage: a tag is removed, or an image by its digest."""
    name = REPOSITORIES.find(context, params).name
    deleted: list[Json] = []
    failures: list[Json] = []
    for image_id in params["imageIds"]:
        found = _found(context.images, name, image_id)
        if found is not None and context.images.delete(name, image_id.get("imageTag") or found.digest):
            deleted.append({**image_id, "imageDigest": found.digest})
        else:
            failures.append(_failure(image_id))
    return {"imageIds": deleted, "failures": failures}


def _found(images: ImageStore, repository: str, image_id: Mapping[str, str]) -> Manifest | None:
    references: Iterable[str] = [image_id[key] for key in ("imageDigest", "imageTag") if key in image_id]
    found: list[Any] = [images.manifest(repository, reference) for reference in references]
    is_same = bool(found) and all(each is not None and each.digest == found[0].digest for each in found)
    return found[0] if is_same else None


def _failure(image_id: Mapping[str, str]) -> Json:
    return {"imageId": image_id, "failureCode": "ImageNotFound", "failureReason": "Requested image not found"}


def _shown(image_id: Mapping[str, str]) -> str:
    parts = (f"{name}:'{image_id[name]}'" for name in ("imageDigest", "imageTag") if name in image_id)
    return "{" + ", ".join(parts) + "}"


def authorization(context: AccountCall, password: str, expires_s: float) -> Json:
    """Return the answer of GetAuthorizationToken for a password."""
    token = base64.b64encode(f"{USER}:{password}".encode()).decode()
    data = {"authorizationToken": token, "expiresAt": expires_s, "proxyEndpoint": context.url}
    return {"authorizationData": [data]}
