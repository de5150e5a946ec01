-- What became of the events.
SELECT concat_ws(' ', j.kind, j.status, coalesce(j.result::text, '-'), coalesce(j.errors->0->>'code', '-'))
  FROM tidegate.jobs AS j ORDER BY j.id
