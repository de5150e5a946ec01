-- How the systems' own tables forget a person, and remove rows after their retention. The functions run as
-- the owner, so a role that may forget needs no rights on the tables.

-- Forgets a form, or all forms about an employee, and their messages. A grant is kept, because it names a
-- company. It then refers to no form.
CREATE FUNCTION forms.forget(form_id text, national_id text, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    ids CONSTANT text[] := ARRAY(SELECT f.id FROM forms.form AS f
                                  WHERE f.id = forget.form_id OR f.employee_national_id = forget.national_id);
    told jsonb := jsonb_build_object(
        'forms.form', cardinality(ids),
        'forms.message', (SELECT count(*) FROM forms.message AS m WHERE m.form_id = ANY (ids)));
BEGIN
    IF NOT forget.dry_run THEN
        UPDATE forms.awarded_grant AS g SET form_id = NULL WHERE g.form_id = ANY (ids);
        DELETE FROM forms.message AS m WHERE m.form_id = ANY (ids);
        DELETE FROM forms.form AS f WHERE f.id = ANY (ids);
    END IF;
    RETURN jsonb_build_object('forms', ids, 'tables', told);
END $$;

-- Forgets all entities of a patient. The audit must be kept. It contains ids, but no medical data.
CREATE FUNCTION medical.forget(patient_id uuid, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20s' AS $$
DECLARE
    told jsonb := jsonb_build_object(
        'medical.entity', (SELECT count(*) FROM medical.entity AS e WHERE e.patient_id = forget.patient_id));
BEGIN
    IF NOT forget.dry_run THEN
        DELETE FROM medical.entity AS e WHERE e.patient_id = forget.patient_id;
    END IF;
    RETURN told;
END $$;

-- Whether an event of a form is in the queue. A function, so that it is asked of old forms only.
CREATE FUNCTION forms.has_events(form_id text) RETURNS boolean
    LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.group_key = 'form:' || has_events.form_id)
$$;

-- Removes closed forms that have not changed for this long, up to the given number, and messages without a
-- form. A form that nobody has decided on stays, and so does one with an event in the queue.
CREATE FUNCTION forms.expire(kept interval, most integer, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() - expire.kept;
    closed CONSTANT text[] := ARRAY['approved', 'cancelled', 'declined'];
    ids text[];
    messages bigint;
BEGIN
    IF expire.dry_run THEN
        RETURN jsonb_build_object(
            'forms.form', (SELECT count(*) FROM forms.form AS f
                            WHERE f.updated_at < until AND f.status = ANY (closed) AND NOT forms.has_events(f.id)),
            'forms.message', (SELECT count(*) FROM forms.message AS m LEFT JOIN forms.form AS f ON f.id = m.form_id
                               WHERE coalesce(f.updated_at, m.received_at) < until AND coalesce(f.status = ANY (closed), true)
                                 AND NOT forms.has_events(f.id)));
    END IF;
    ids := ARRAY(SELECT f.id FROM forms.form AS f
                  WHERE f.updated_at < until AND f.status = ANY (closed) AND NOT forms.has_events(f.id)
                  LIMIT expire.most FOR UPDATE SKIP LOCKED);
    UPDATE forms.awarded_grant AS g SET form_id = NULL WHERE g.form_id = ANY (ids);
    DELETE FROM forms.message AS m
     WHERE m.form_id = ANY (ids)
        OR m.id IN (SELECT o.id FROM forms.message AS o WHERE o.form_id IS NULL AND o.received_at < until LIMIT expire.most);
    GET DIAGNOSTICS messages = ROW_COUNT;
    DELETE FROM forms.form AS f WHERE f.id = ANY (ids);
    RETURN jsonb_build_object('forms.form', cardinality(ids), 'forms.message', messages);
END $$;

-- Removes checks that ended and have not changed for this long. An open check never expires.
CREATE FUNCTION checks.expire(kept interval, most integer, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() - expire.kept;
    ids CONSTANT bigint[] := ARRAY(SELECT i.id FROM checks.issuing_check AS i
                                    WHERE i.updated_at < until AND checks.is_ended(i)
                                    LIMIT CASE WHEN NOT expire.dry_run THEN expire.most END);
    removed bigint := cardinality(ids);
BEGIN
    IF NOT expire.dry_run THEN
        DELETE FROM checks.issuing_check AS i
         WHERE i.id = ANY (ids) AND i.updated_at < until;
        GET DIAGNOSTICS removed = ROW_COUNT;
    END IF;
    RETURN jsonb_build_object('checks.issuing_check', removed);
END $$;

-- Whether an entity waits for further jobs.
CREATE FUNCTION medical.is_open(e medical.entity) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN (e.kind, e.status) IN (('episode', 'active'), ('service_request', 'active'), ('service_request', 'in_progress'), ('approval', 'new'));

-- Whether a job of a patient is in the queue. A function, so that it is asked of old entities only.
CREATE FUNCTION medical.has_jobs(patient_id uuid) RETURNS boolean
    LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM tidegate.event_queue AS q WHERE q.group_key = 'patient:' || has_jobs.patient_id)
$$;

-- The entities of at most `most` whole trees, such as an episode with its encounters and all that is recorded
-- there, in which nothing is open and nothing has changed since a time, of patients without a job in the
-- queue.
CREATE FUNCTION medical.old_trees(until timestamptz, most integer) RETURNS uuid[]
    LANGUAGE sql STABLE AS $$
    WITH RECURSIVE tree AS (
        SELECT e.id AS root, e.id, e.updated_at < until AND NOT medical.is_open(e) AS over
          FROM medical.entity AS e
         WHERE NOT EXISTS (SELECT FROM medical.entity AS p WHERE p.id = e.parent_id)
           AND e.updated_at < until AND NOT medical.is_open(e)
           AND NOT medical.has_jobs(e.patient_id)
         UNION ALL
        SELECT t.root, c.id, c.updated_at < until AND NOT medical.is_open(c)
          FROM tree AS t JOIN medical.entity AS c ON c.parent_id = t.id
    )
    SELECT coalesce(array_agg(m.id), '{}')
      FROM (SELECT t.root FROM tree AS t GROUP BY t.root HAVING bool_and(t.over) ORDER BY t.root LIMIT most) AS r
      JOIN tree AS m USING (root)
$$;

-- Removes trees of entities that no job has changed for this long, each as a whole and only if all of it is
-- closed.
CREATE FUNCTION medical.expire(kept interval, most integer, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() - expire.kept;
    ids uuid[] := medical.old_trees(until, CASE WHEN NOT expire.dry_run THEN expire.most END);
    again uuid[];
    removed bigint := cardinality(ids);
BEGIN
    IF NOT expire.dry_run THEN
        PERFORM FROM medical.entity AS e WHERE e.id = ANY (ids) ORDER BY e.kind, e.id FOR UPDATE;
        -- A separate statement, so that it sees what a job has changed while we waited.
        again := medical.old_trees(until, expire.most);
        DELETE FROM medical.entity AS e WHERE e.id = ANY (ids) AND e.id = ANY (again);
        GET DIAGNOSTICS removed = ROW_COUNT;
    END IF;
    RETURN jsonb_build_object('medical.entity', removed);
END $$;
