-- Tables of your own, in a schema of their own: the queue knows nothing of them.

CREATE SCHEMA shop;

CREATE TABLE shop.shipment (
    order_id  bigint      PRIMARY KEY,
    parcel    text        NOT NULL,
    booked_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
