-- What every example publishes, in the order of the publishes.
SELECT concat_ws(' ', q.kind, q.payload::jsonb, coalesce(q.group_key, '-'), coalesce(q.dedup_key, '-'), q.delayed)
  FROM tidegate.event_queue AS q, orders AS o WHERE o.id = 7 ORDER BY q.id
