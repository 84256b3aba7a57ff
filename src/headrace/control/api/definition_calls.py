"""The operations that models and endpoint configurations have in common."""

from dataclasses import dataclass

from headrace.control.api.context import CallContext, already_exists, tags_of
from headrace.control.api.listing import Listed, list_page
from headrace.control.model.definitions import DefinitionSpec
from headrace.control.model.names import TITLES
from headrace.state.records import AlreadyExists, Json, Kind, NoStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionCalls:
    """The operations of one kind of definition, in AWS's words."""

    kind: Kind[DefinitionSpec, NoStatus]
    word: str
    """`Model`: AWS's members are made of it (`ModelName`, `ModelArn`, `Models`)."""

    def create(self, context: CallContext, name: str, *, members: Json, params: Json) -> Json:
        """
        Add a definition with validated members and the tags of its `params`.

        Raises:
            AwsError: the name is taken.
        """
        try:
            context.store.create(self.kind, name, spec=DefinitionSpec(members=members), tags=tags_of(params))
        except AlreadyExists:
            raise already_exists(TITLES[self.kind], context.arn(self.kind, name)) from None
        return {f"{self.word}Arn": context.arn(self.kind, name)}

    def describe(self, context: CallContext, params: Json) -> Json:
        """Return it as it was made."""
        record = context.get(self.kind, params[f"{self.word}Name"])
        return {
            "EnableNetworkIsolation": False,
            **record.spec.members,
            f"{self.word}Arn": context.arn(self.kind, record.name),
            "CreationTime": record.created_s,
        }

    def list(self, context: CallContext, params: Json) -> Json:
        """Return a page."""
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
        """Remove it; endpoints that were made of it keep their copy."""
        context.store.remove(context.find(self.kind, params[f"{self.word}Name"]))
        return {}
