"""Models and endpoint configurations: made once, never changed, copied by the endpoints that use them."""

from dataclasses import dataclass

from headrace.control.api.context import CallContext, already_exists, tags_of
from headrace.control.api.listing import Listed, list_page
from headrace.control.model.names import TITLES
from headrace.state.records import AlreadyExists, AnyKind, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One kind of them, in AWS's words."""

    kind: AnyKind
    word: str
    """`Model`: AWS's members are made of it (`ModelName`, `ModelArn`, `Models`)."""

    def create(self, context: CallContext, name: str, *, spec: Json, params: Json) -> Json:
        """
        Add one that was found to be right, with the tags of its `params`.

        Raises:
            AwsError: the name is taken.
        """
        try:
            context.store.create(self.kind, name, spec=spec, tags=tags_of(params))
        except AlreadyExists:
            raise already_exists(TITLES[self.kind], context.arn(self.kind, name)) from None
        return {f"{self.word}Arn": context.arn(self.kind, name)}

    def describe(self, context: CallContext, params: Json) -> Json:
        """As it was made."""
        record = context.get(self.kind, params[f"{self.word}Name"])
        return {
            "EnableNetworkIsolation": False,
            **record.spec,
            f"{self.word}Arn": context.arn(self.kind, record.name),
            "CreationTime": record.created_s,
        }

    def list(self, context: CallContext, params: Json) -> Json:
        """One page."""
        things = [
            Listed(
                name=record.name,
                created_s=record.created_s,
                modified_s=record.modified_s,
                status="",
                summary={
                    f"{self.word}Name": record.name,
                    f"{self.word}Arn": context.arn(self.kind, record.name),
                    "CreationTime": record.created_s,
                },
            )
            for record in context.store.list(self.kind)
        ]
        return list_page(things, params, member=f"{self.word}s")

    def delete(self, context: CallContext, params: Json) -> Json:
        """Forget it; endpoints that were made of it keep their copy."""
        context.store.remove(context.get(self.kind, params[f"{self.word}Name"]))
        return {}
