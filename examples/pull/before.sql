-- The login of the examples handles events now, and does nothing else.
REVOKE tidegate_publish FROM shop;
GRANT tidegate_pull TO shop;
CREATE TABLE shipments (order_id bigint PRIMARY KEY, event_id bigint);
GRANT INSERT ON shipments TO shop;
SELECT id FROM tidegate.publish_many('[
    {"kind": "order_placed", "payload": {"order_id": 7, "skus": ["a-1", "b-2"]}},
    {"kind": "order_placed", "payload": {"order_id": 8, "skus": []}},
    {"kind": "order_paid", "payload": {"order_id": 7}}]');
