"""
Records that are only stored, and the operations on them.

A `Resource` says how a kind of record is named, shown, listed and refused. Its methods are the handlers of its Create,
Get, List, Update, Delete and tag operations, so that such an operation is a row in `host.operations`. Calls are
validated by botocore's models, and a response has only the members of its output shape: a handler returns the whole
document of a record.

A `Part` is a group of named items in such a record, such as the inline policies of a role.

SageMaker's model packages and cards are no such kinds: their lists sort by time, and their calls make versions.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headrace.platform.cloudwatch.api.context import CloudWatchCall
from headrace.platform.state.records import (
    AlreadyExists,
    Conflict,
    Json,
    Kind,
    NoStatus,
    Record,
    RecordPart,
    Unreadable,
)
from headrace.platform.state.selection import Entry, Selection
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Paginator
from headrace.serving.wire.aws.scope import partition_of
from headrace.serving.wire.aws.tags import list_tags, merge_tags


class StoredSpec(RecordPart, frozen=True, kw_only=True):
    members: Json
    """The members of the Create request, as updates have changed them."""
    parts: dict[str, dict[str, Json]] = msgspec.field(default_factory=dict)
    """Groups of named items, such as the policies of a role."""

    def with_part(self, group: str, name: str, item: Json | None) -> "StoredSpec":
        """Return the spec with another item, or without one: `None`."""
        items = {key: value for key, value in self.parts.get(group, {}).items() if key != name or item is not None}
        changed = items if item is None else {**items, name: item}
        return msgspec.structs.replace(self, parts={**self.parts, group: changed})


StoredRecord = Record[StoredSpec, NoStatus]


def stored_kind(name: str) -> Kind[StoredSpec, NoStatus]:
    return Kind(name, StoredSpec, NoStatus)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of a service; its text may have `{name}`, `{arn}`, `{most}` and `{why}`."""

    code: str
    text: str
    status: int = 400

    def error(self, **values: object) -> AwsError:
        return AwsError(self.code, self.text.format(**values), status=self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The pages of a service's lists, which are ordered by name."""

    paginator: Paginator
    size_member: str = ""
    """The member with the size of a page, if requests have one."""
    size: int = 100
    has_truncation: bool = False
    """A response says `IsTruncated`."""

    def answer(self, items: Iterable[tuple[str, Any]], params: Json, *, member: str) -> Json:
        """Return a page of named items, in the order of their names; those before it may be left out."""
        last = self.last_name(params, member)
        later = (item for item in items if last is None or item[0] > last)
        size = params.get(self.size_member, self.size)
        chosen, token = self.paginator.cut(later, listing=member, key=lambda item: (item[0],), size=size)
        truncation = {"IsTruncated": bool(token)} if self.has_truncation else {}
        return {member: [item for _, item in chosen], **truncation, **token}

    def last_name(self, params: Json, member: str) -> str | None:
        last = self.paginator.last_key(params, listing=member, like=("",))
        return None if last is None else str(last[0])


def _nothing(*_: object) -> None:
    """Accept anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of record that is only stored, in the terms of its service."""

    kind: Kind[StoredSpec, NoStatus]
    word: str = ""
    """The member that holds a record's document: `Role`; empty: the result is the document."""
    key: str
    """The member with its name: `RoleName`."""
    list_member: str
    arn: str
    """The ARN after the partition: `iam::{account}:role{Path}{name}`, with members of the record."""
    names: tuple[str, ...]
    """Members by which requests name a record, by its name or its ARN."""
    pages: Pages
    absent: Refusal
    present: Refusal
    full: Refusal
    invalid: Refusal
    """The error for tags and other values that the model does not check."""
    most: int
    """The largest number of records. Source: quotas of the service."""
    arn_member: str = "Arn"
    created_member: str = "CreateDate"
    separator: str = "/"
    """What is before the name in an ARN."""
    prefix_member: str = ""
    """The member of List by which records are filtered."""
    prefixed: str = ""
    """The member of a record that begins with it; empty: its name."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Members of requests that records have by another name."""
    check: Callable[[Json], None] = _nothing
    """Checks members that a call gives."""
    shown: Callable[[CloudWatchCall, StoredRecord], Json] = lambda *_: {}
    """Returns what a document has beside the stored members, or in place of them."""
    implicit: Callable[[Any, str], StoredRecord | None] = lambda *_: None
    """Returns a record that exists without being stored."""
    check_delete: Callable[[CloudWatchCall, StoredRecord], None] = _nothing

    def create(self, context: CloudWatchCall, params: Json) -> Json:
        given = self._given(params)
        return self.add(context, params[self.key], StoredSpec(members={**self.defaults, **given}), params)

    def add(self, context: CloudWatchCall, name: str, spec: StoredSpec, params: Json) -> Json:
        """Add a record with the call's `Tags`, and return its document; refuse a taken name, and too many records."""
        tags = self.merge_tags(params)
        if context.store.count(self.kind) >= self.most:
            raise self.full.error(most=self.most)
        try:
            record = context.store.create(self.kind, name, spec=spec, tags=tags)
        except AlreadyExists:
            raise self.present.error(name=name, arn=self.arn_of(context, name, spec)) from None
        return self._result(context, record)

    def put(self, context: CloudWatchCall, params: Json) -> Json:
        """Add a record, or replace the members of the one with its name."""
        record = context.store.get(self.kind, params[self.key])
        if record is None:
            return self.create(context, params)
        spec = StoredSpec(members={**self.defaults, **self._given(params)})
        written = context.store.update(self._readable(record), spec=spec)
        return self._result(context, written)

    def get(self, context: CloudWatchCall, params: Json) -> Json:
        return self._result(context, self.find(context, params))

    def list(self, context: CloudWatchCall, params: Json) -> Json:
        last, prefix = self.pages.last_name(params, self.list_member), params.get(self.prefix_member, "")
        selection = Selection(
            name_prefix="" if self.prefixed else prefix,
            order="name",
            after=None if last is None else Entry(name=last, created_s=0.0),
        )
        documents = (
            (record.name, {name: value for name, value in self.document(context, record).items() if name != "Tags"})
            for record in context.store.each(self.kind, selection)
            if isinstance(record, Record)
        )
        fitting = (item for item in documents if not self.prefixed or item[1][self.prefixed].startswith(prefix))
        return self.pages.answer(fitting, params, member=self.list_member)

    def update(self, context: CloudWatchCall, params: Json) -> Json:
        given = self._given(params)
        return self.change(
            context, params, lambda spec: msgspec.structs.replace(spec, members={**spec.members, **given})
        )

    def delete(self, context: CloudWatchCall, params: Json) -> Json:
        record = context.store.get(self.kind, self.name_in(params))
        if record is None:
            raise self._absent(context, params)
        if isinstance(record, Record):
            self.check_delete(context, record)
        context.store.remove(record)
        return {}

    def tag(self, context: CloudWatchCall, params: Json) -> Json:
        record = self._stored(context, self.find(context, params))
        context.store.update(record, tags=self.merge_tags(params, before=record.tags))
        return {}

    def untag(self, context: CloudWatchCall, params: Json) -> Json:
        """Remove tags; keys that do not exist are ignored."""
        record = self._stored(context, self.find(context, params))
        removed = set(params.get("TagKeys") or params["tagKeys"])
        context.store.update(record, tags={key: value for key, value in record.tags.items() if key not in removed})
        return {}

    def list_tags(self, context: CloudWatchCall, params: Json) -> Json:
        tags = list_tags(self.find(context, params).tags)
        return self.pages.answer(((tag["Key"], tag) for tag in tags), params, member="Tags")

    def merge_tags(self, params: Json, *, before: Mapping[str, str] | None = None) -> dict[str, str]:
        return merge_tags(
            params.get("Tags") or params.get("tags"), lambda why: self.invalid.error(why=why), before=before or {}
        )

    def change(self, context: CloudWatchCall, params: Json, change: Callable[[StoredSpec], StoredSpec]) -> Json:
        """Write a changed record, also one that was not stored before, and return its document."""
        record = self._stored(context, self.find(context, params))
        written = context.store.update(record, spec=change(record.spec))
        return self._result(context, written)

    def find(self, context: CloudWatchCall, params: Json) -> StoredRecord:
        """Return the record that a call names. Raises `AwsError`."""
        name = self.name_in(params)
        record = context.store.get(self.kind, name) or self.implicit(context, name)
        if record is None:
            raise self._absent(context, params)
        record, given = self._readable(record), self._identifier(params)
        if given.startswith("arn:") and given != self.arn_of(context, record.name, record.spec):
            raise self._absent(context, params)
        return record

    def name_in(self, params: Json) -> str:
        given = self._identifier(params)
        return given.rpartition(self.separator)[2] if given.startswith("arn:") else given

    def _identifier(self, params: Json) -> str:
        """Return the name or the ARN of the record that a call names."""
        given: str = next(params[member] for member in self.names if member in params)
        return given

    def _absent(self, context: CloudWatchCall, params: Json) -> AwsError:
        name, given = self.name_in(params), self._identifier(params)
        arn = given if given.startswith("arn:") else self.arn_of(context, name, StoredSpec(members={}))
        return self.absent.error(name=name, arn=arn)

    def document(self, context: CloudWatchCall, record: StoredRecord) -> Json:
        members = {
            **record.spec.members,
            self.key: record.name,
            self.arn_member: self.arn_of(context, record.name, record.spec),
            self.created_member: record.created_s,
            **({"Tags": list_tags(record.tags)} if record.tags else {}),
            **self.shown(context, record),
        }
        return {name: value for name, value in members.items() if value is not None}

    def arn_of(self, context: CloudWatchCall, name: str, spec: StoredSpec) -> str:
        scope = context.aws_scope
        members = {**self.defaults, **spec.members, "name": name, "account": scope.account, "region": scope.region}
        return f"arn:{partition_of(scope.region)}:{self.arn.format_map(members)}"

    def _result(self, context: CloudWatchCall, record: StoredRecord) -> Json:
        document = self.document(context, record)
        return {self.word: document} if self.word else document

    def _given(self, params: Json) -> Json:
        """Return the members to store that a call gives."""
        given = {self.renamed.get(name, name): value for name, value in params.items()}
        self.check(given)
        return {name: value for name, value in given.items() if name not in (*self.names, self.key, "Tags", "tags")}

    def _stored(self, context: CloudWatchCall, record: StoredRecord) -> StoredRecord:
        """Return the record after storing one that exists implicitly."""
        if record.revision:
            return record
        try:
            return context.store.create(self.kind, record.name, spec=record.spec)
        except AlreadyExists as error:
            raise Conflict(str(error)) from error

    def _readable(self, record: StoredRecord | Unreadable) -> StoredRecord:
        if isinstance(record, Unreadable):
            why = f"The record of {record.name} cannot be read ({record.reason}). Delete it, and create it again."
            raise self.invalid.error(why=why)
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A group of named items in the records of a resource."""

    owner: Resource
    group: str
    key: str
    """The member with an item's name: `PolicyName`."""
    list_member: str
    absent: Refusal
    full: Refusal
    most: int
    check: Callable[[CloudWatchCall, Json], None] = _nothing
    listed: Callable[[str, Json], Any] = lambda name, _: name
    shown: Callable[[Json], Json] = lambda item: item

    def put(self, context: CloudWatchCall, params: Json) -> Json:
        self.check(context, params)
        name = params[self.key]
        item = {member: value for member, value in params.items() if member not in (*self.owner.names, self.key)}

        def add(spec: StoredSpec) -> StoredSpec:
            changed = spec.with_part(self.group, name, item)
            if len(changed.parts[self.group]) > self.most:
                raise self.full.error(most=self.most)
            return changed

        self.owner.change(context, params, add)
        return {}

    def get(self, context: CloudWatchCall, params: Json) -> Json:
        record = self.owner.find(context, params)
        item = self.item(record, params[self.key])
        return {self.owner.key: record.name, self.key: params[self.key], **self.shown(item)}

    def list(self, context: CloudWatchCall, params: Json) -> Json:
        items = sorted(self.items(self.owner.find(context, params)).items())
        listed = ((name, self.listed(name, item)) for name, item in items)
        return self.owner.pages.answer(listed, params, member=self.list_member)

    def delete(self, context: CloudWatchCall, params: Json) -> Json:
        name = params[self.key]
        self.item(self.owner.find(context, params), name)
        self.owner.change(context, params, lambda spec: spec.with_part(self.group, name, None))
        return {}

    def items(self, record: StoredRecord) -> Mapping[str, Json]:
        return record.spec.parts.get(self.group, {})

    def item(self, record: StoredRecord, name: str) -> Json:
        found = self.items(record).get(name)
        if found is None:
            raise self.absent.error(name=name, arn=name)
        return found


IMPLICIT_UID: Final = "implicit"


def implicit_record(kind: Kind[StoredSpec, NoStatus], name: str, *, members: Json, created_s: float) -> StoredRecord:
    """Return a record that exists without being stored; its revision is 0, which no stored record has."""
    return Record(
        kind=kind,
        name=name,
        uid=IMPLICIT_UID,
        revision=0,
        spec=StoredSpec(members=members),
        status=NoStatus(),
        created_s=created_s,
        modified_s=created_s,
    )
