-- Your own tables, in a schema of your own. The queue does not use them.

CREATE SCHEMA shop;

CREATE TABLE shop.shipment (
    order_id  bigint      PRIMARY KEY,
    parcel    text        NOT NULL,
    booked_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
