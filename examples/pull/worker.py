"""Handles orders by SQL, with psycopg 3: `pip install "psycopg[binary]"`."""

import os

import psycopg
from psycopg.types.json import Jsonb

KINDS = ["order_placed"]


def ship(connection, event):
    """Returns a result. Runs in the transaction that ends the event."""
    if not event["payload"]["skus"]:
        raise ValueError("the order has no items")
    connection.execute("INSERT INTO shipments (order_id, event_id) VALUES (%s, %s)", [event["payload"]["order_id"], event["id"]])
    return {"items": len(event["payload"]["skus"])}


with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
    while events := connection.execute("SELECT * FROM tidegate.poll(%s, most => 10, lease => '5 min')", [KINDS]).fetchall():
        left = set()
        for event in events:
            if event["id"] in left:
                continue
            try:
                with connection.transaction():
                    result = ship(connection, event)
                    connection.execute("SELECT tidegate.finalize(%s, %s, result => %s)", [event["id"], event["token"], Jsonb(result)])
            except ValueError as wrong:
                # It will never work: the event ends with its errors.
                errors = Jsonb([{"code": "no_items", "message": str(wrong)}])
                connection.execute("SELECT tidegate.finalize(%s, %s, %s)", [event["id"], event["token"], errors])
            except Exception as failed:
                if getattr(failed, "sqlstate", None) == "TG001":
                    # Somebody else has the event now, and nothing of the transaction was stored.
                    print(failed.diag.message_primary)
                    continue
                # It may work later. This attempt counts. Later events of its group wait for it, and have left the lease, too.
                error = Jsonb({"code": type(failed).__name__, "message": str(failed)})
                back = connection.execute("SELECT left_too FROM tidegate.retry(%s, %s, %s)", [event["id"], event["token"], error])
                left.update(back.fetchone()["left_too"])
