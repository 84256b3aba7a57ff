"""A store compared with a dictionary under random sequences of calls."""

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from headrace.platform.state.records import AlreadyExists, Conflict, Json, Kind, Record
from headrace.platform.state.store import open_store
from tests.platform.state.kinds import ENDPOINT, MODEL

KINDS = st.sampled_from([MODEL, ENDPOINT])
NAMES = st.sampled_from(["a", "b", "ü"])
VALUES: st.SearchStrategy[Json] = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3)
TAGS = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)


def ticks() -> Iterator[float]:
    now_s = 0.0
    while True:
        now_s += 1
        yield now_s


class StoreMachine(RuleBasedStateMachine):
    """A store beside a dictionary of what it should have."""

    records = Bundle("records")

    @initialize()
    def begin(self) -> None:
        clock = ticks()
        self.store = open_store("sqlite://", now_s=lambda: next(clock))
        self.expected: dict[tuple[Kind, str], Record] = {}
        self.newest = 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    @rule(target=records, kind=KINDS, name=NAMES, spec=VALUES, tags=TAGS)
    def create(self, kind: Kind, name: str, spec: Json, tags: dict[str, str]):
        try:
            made = self.store.create(kind, name, spec=spec, tags=tags)
        except AlreadyExists:
            assert (kind, name) in self.expected
            return multiple()
        assert (kind, name) not in self.expected
        assert (made.spec, made.status, made.tags) == (spec, {}, tags)
        return self._wrote(made)

    @rule(target=records, record=records, status=VALUES, is_deleting=st.booleans())
    def update(self, record: Record, status: Json, is_deleting: bool):
        is_newest = self.expected.get((record.kind, record.name)) == record
        try:
            written = self.store.update(record, status=status, is_deleting=is_deleting)
        except Conflict:
            assert not is_newest
            return multiple()
        assert is_newest
        assert (written.uid, written.spec, written.status) == (record.uid, record.spec, status)
        assert (written.deleting_s is not None) == (is_deleting or record.deleting_s is not None)
        return multiple() if written == record else self._wrote(written)

    @rule(record=consumes(records))
    def remove(self, record: Record) -> None:
        there = self.expected.get((record.kind, record.name))
        is_gone = there is None or there.uid != record.uid
        try:
            self.store.remove(record)
        except Conflict:
            assert not is_gone
            assert there != record
            return
        assert is_gone or there == record
        if not is_gone:
            del self.expected[record.kind, record.name]
            self.newest += 1

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.revision() == self.newest
        for kind in (MODEL, ENDPOINT):
            wanted = [record for (its_kind, _), record in self.expected.items() if its_kind is kind]
            assert list(self.store.list(kind)) == sorted(wanted, key=lambda record: (record.created_s, record.name))

    def _wrote(self, record: Record) -> Record:
        self.newest += 1
        assert record.revision == self.newest
        self.expected[record.kind, record.name] = record
        return record


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=25, stateful_step_count=15)
