-- What people and programs of docs/guides/publish.md may do, and what its examples may.
CREATE ROLE shop LOGIN IN ROLE tidegate_publish;
CREATE ROLE somebody LOGIN IN ROLE tidegate_publish, tidegate_pull, tidegate_read, tidegate_operate, tidegate_jobs;
GRANT EXECUTE ON FUNCTION tidegate.receive TO somebody;
CREATE TABLE orders (id bigint PRIMARY KEY);
GRANT INSERT ON orders TO shop;
GRANT SELECT, INSERT ON orders TO somebody;
INSERT INTO tidegate.event_kind (kind) VALUES ('order_placed'), ('order_paid');
