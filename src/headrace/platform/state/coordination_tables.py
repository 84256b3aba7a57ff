"""The tables of `state.coordination`, and the statements that its heartbeats run."""

from typing import Final

import sqlalchemy as sa

TABLES: Final = sa.MetaData()
MEMBERS: Final = sa.Table(
    "headrace_members",
    TABLES,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("url", sa.String, nullable=False),
    sa.Column("host", sa.String, nullable=False),
    sa.Column("data_dir", sa.String, nullable=False),
    sa.Column("version", sa.String, nullable=False),
    sa.Column("expires_s", sa.Double, nullable=False),
    sa.Column("forms", sa.String, nullable=False, server_default="{}"),
)
LEADER: Final = sa.Table(
    "headrace_leader",
    TABLES,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("member", sa.String, nullable=False),
    sa.Column("term", sa.BigInteger, nullable=False),
    sa.Column("expires_s", sa.Double, nullable=False),
    sa.Column("home_host", sa.String, nullable=False),
    sa.Column("home_dir", sa.String, nullable=False),
    sa.Column("agreed", sa.String, nullable=False),
)
BULLETINS: Final = sa.Table(
    "headrace_bulletins",
    TABLES,
    sa.Column("member", sa.String, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("topic", sa.String, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("posted_s", sa.Double, nullable=False),
)
AGREEMENTS: Final = sa.Table(
    "headrace_agreements",
    TABLES,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("value", sa.String, nullable=False),
)


def _is_live(expires_s: "sa.Column[float]") -> sa.ColumnElement[bool]:
    """
    Return whether a heartbeat has not expired; an expiry too far ahead dates from before the clock was set back.

    A heartbeat that is committed after `now_s` was read expires more than a lease after it.
    """
    return sa.and_(expires_s > sa.bindparam("now_s"), expires_s <= sa.bindparam("latest_s"))


# Statements that run often are built once: SQLAlchemy takes longer for that than the database for their execution.
_IS_MINE: Final = sa.and_(LEADER.c.member == sa.bindparam("own_id"), LEADER.c.term == sa.bindparam("own_term"))
_LEASE_IS_LIVE: Final = _is_live(LEADER.c.expires_s)
RENEW: Final = sa.update(LEADER).where(_IS_MINE, _LEASE_IS_LIVE)
TAKE: Final = (
    sa.update(LEADER)
    .where(sa.not_(_LEASE_IS_LIVE))
    .values(member=sa.bindparam("own_id"), expires_s=sa.bindparam("until_s"), term=LEADER.c.term + 1)
    .returning(LEADER.c.term)
)
GIVE_UP: Final = sa.update(LEADER).where(_IS_MINE).values(member="", expires_s=0.0)
LEASE: Final = sa.select(LEADER.c.term, LEADER.c.member, _LEASE_IS_LIVE.label("is_live"))
HOME: Final = sa.select(LEADER.c.home_host, LEADER.c.home_dir)
ANNOUNCE: Final = sa.update(MEMBERS).where(MEMBERS.c.id == sa.bindparam("own_id"))
LIVE_MEMBERS: Final = (
    sa.select(*(column for column in MEMBERS.c if column.name != "expires_s"))
    .where(_is_live(MEMBERS.c.expires_s))
    .order_by(MEMBERS.c.id)
)
REPORTERS: Final = sa.select(BULLETINS.c.member).distinct()
