"""psycopg 3: `pip install "psycopg[binary]"`."""

import os

import psycopg
from psycopg.types.json import Jsonb

with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    # The order and its event are stored together, or neither is.
    with connection.transaction():
        connection.execute("INSERT INTO orders (id) VALUES (%s)", [7])
        event = connection.execute(
            "SELECT id, created FROM tidegate.publish(%s, %s, group_key => %s, dedup_key => %s)",
            ["order_placed", Jsonb({"order_id": 7, "skus": ["a-1", "b-2"]}), "customer-3", "order-7"],
        ).fetchone()
        print("event", event[0], "new" if event[1] else "duplicate")

    # A batch: all or none, and one row of the answer for each event, in order.
    with connection.transaction():
        events = [
            {"kind": "order_placed", "payload": {"order_id": 8, "skus": ["c-3"]}},
            {"kind": "order_paid", "payload": {"order_id": 8}, "delay": 90},
        ]
        for id, created in connection.execute("SELECT id, created FROM tidegate.publish_many(%s)", [Jsonb(events)]):
            print("event", id, "new" if created else "duplicate")

    # The block rolls back what failed; the message names the field.
    try:
        with connection.transaction():
            connection.execute("SELECT tidegate.publish(%s, NULL)", ["order_plcaed"])
    except psycopg.errors.InvalidParameterValue as error:
        print("refused:", error.diag.message_primary)
