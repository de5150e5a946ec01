"""SQLAlchemy 2 with psycopg 3: `pip install sqlalchemy "psycopg[binary]"`."""

import json
import os

from sqlalchemy import BigInteger, Identity, create_engine, text
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Event(Base):
    """The columns that a publisher may write; the rest have defaults."""

    __tablename__ = "event_queue"
    __table_args__ = {"schema": "tidegate"}
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    kind: Mapped[str]
    # Without none_as_null, None would be stored as JSON's null instead of no payload.
    payload: Mapped[dict | None] = mapped_column(JSON(none_as_null=True))


PUBLISH = text("""SELECT id, created FROM tidegate.publish(:kind, CAST(:payload AS jsonb), group_key => :group, dedup_key => :dedup)""")
PUBLISH_MANY = text("SELECT id, created FROM tidegate.publish_many(CAST(:events AS jsonb))")
engine = create_engine(os.environ["DATABASE_URL"].replace("postgres://", "postgresql+psycopg://"))

with Session(engine) as session, session.begin():
    session.execute(text("INSERT INTO orders (id) VALUES (7)"))
    payload = json.dumps({"order_id": 7, "skus": ["a-1", "b-2"]})
    event = session.execute(PUBLISH, {"kind": "order_placed", "payload": payload, "group": "customer-3", "dedup": "order-7"}).one()
    print("event", event.id, "new" if event.created else "duplicate")
    # An event without a group or a deduplication key may be an object: flush sends INSERT … RETURNING id.
    placed = Event(kind="order_placed", payload={"order_id": 8, "skus": ["c-3"]})
    session.add(placed)
    session.flush()
    print("event", placed.id, "new")
    events = json.dumps([{"kind": "order_paid", "payload": {"order_id": 8}, "delay": 90}])
    for event in session.execute(PUBLISH_MANY, {"events": events}):
        print("event", event.id, "new" if event.created else "duplicate")

try:
    with Session(engine) as session, session.begin():
        session.add(Event(kind="order_plcaed"))
except DBAPIError as error:
    print("refused:", error.orig.diag.message_primary)
