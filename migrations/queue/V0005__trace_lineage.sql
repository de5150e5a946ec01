-- What a replay must know of a finished event, and what leads from an event to its kin.

-- Start before this or never: the live row's expires_at, whose name in the log is the retention's.
ALTER TABLE tidegate.event_log ADD COLUMN deadline timestamptz;

-- One live replay of an event at a time: of two operators who replay it at once, one wins. Neither
-- this column nor parent_id is written by a lease, so leases stay HOT.
CREATE UNIQUE INDEX event_queue_replay ON tidegate.event_queue (replay_of) WHERE replay_of IS NOT NULL;
CREATE INDEX event_queue_parent ON tidegate.event_queue (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX event_log_replay ON tidegate.event_log (replay_of) WHERE replay_of IS NOT NULL;
CREATE INDEX event_log_parent ON tidegate.event_log (parent_id) WHERE parent_id IS NOT NULL;
