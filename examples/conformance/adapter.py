"""The adapter of conformance.py for psycopg 3: `pip install "psycopg[binary]"`."""

import datetime
import json
import os
import sys
import uuid

import psycopg
from psycopg.types.json import Jsonb, set_json_loads

AS_JSON = {"payload", "errors", "error", "result", "follow_ups", "outcomes"}


def perform(connection, call, arguments):
    if call in ("begin", "commit", "rollback"):
        done = connection.execute(call)
        # Postgres answers so to the commit of a transaction that has failed, and psycopg raises nothing.
        if call == "commit" and done.statusmessage == "ROLLBACK":
            raise psycopg.errors.InFailedSqlTransaction("the transaction had failed, and nothing of it was stored")
        return []
    names = ", ".join(f"{name} => %({name})s" for name in arguments)
    values = {name: Jsonb(value) if name in AS_JSON else value for name, value in arguments.items()}
    return connection.execute(f"SELECT * FROM tidegate.{call}({names})", values).fetchall()


def told(value):
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    assert isinstance(value, uuid.UUID), value
    return str(value)


# Payloads stay text: what parses a number as a float rounds it.
set_json_loads(lambda text: text if isinstance(text, str) else bytes(text).decode())
with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"rows": perform(connection, request.pop("call"), request)}
        except psycopg.Error as error:
            answer = {"error": {"sqlstate": error.sqlstate, "message": str(error)}}
        print(json.dumps(answer, default=told), flush=True)
