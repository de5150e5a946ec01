-- How the systems' own tables forget a person, and remove rows after their retention. Nobody is granted these
-- functions: the queue's forget_subject() and cleanup_step() call them, and write the audit.

-- Removes these forms and their messages. A grant is kept, because it names a company. It then refers to no
-- form. Their events are found by their correlation ids, not by their groups: a letter about another case may
-- wait there.
CREATE FUNCTION forms.remove(ids text[], dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
    told jsonb := jsonb_build_object(
        'forms.form', (SELECT count(*) FROM forms.form AS f WHERE f.id = ANY (ids)),
        'forms.message', (SELECT count(*) FROM forms.message AS m WHERE m.form_id = ANY (ids)));
BEGIN
    IF NOT dry_run THEN
        UPDATE forms.awarded_grant AS g SET form_id = NULL WHERE g.form_id = ANY (ids);
        DELETE FROM forms.message AS m WHERE m.form_id = ANY (ids);
        DELETE FROM forms.form AS f WHERE f.id = ANY (ids);
    END IF;
    RETURN jsonb_build_object('tables', told, 'correlation_ids', ids);
END $$;

-- Forgets a form. Forms of several clients may have an id, so none is taken for the one that is meant.
CREATE FUNCTION forms.forget(id text, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @tidegate.refuse('subject: must be CLIENT/ID for the form of a client')
      WHERE NOT EXISTS (SELECT FROM forms.form AS f WHERE f.id = forget.id)
        AND EXISTS (SELECT FROM forms.form AS f WHERE f.id = f.client_id::text || '/' || forget.id);
    RETURN forms.remove(ARRAY[forget.id], dry_run);
END $$;

-- Forgets all forms about an employee, by national id.
CREATE FUNCTION forms.forget_person(id text, dry_run boolean) RETURNS jsonb
    LANGUAGE sql
    RETURN forms.remove(ARRAY(SELECT f.id FROM forms.form AS f WHERE f.employee_national_id = forget_person.id), dry_run);

-- Forgets the checks of an application.
CREATE FUNCTION checks.forget(id text, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
    told jsonb := jsonb_build_object(
        'checks.issuing_check', (SELECT count(*) FROM checks.issuing_check AS i WHERE i.application_id = forget.id));
BEGIN
    IF NOT dry_run THEN
        DELETE FROM checks.issuing_check AS i WHERE i.application_id = forget.id;
    END IF;
    RETURN jsonb_build_object('tables', told, 'groups', ARRAY['application:' || forget.id]);
END $$;

-- Forgets all entities of a patient. The audit must be kept. It contains ids, but no medical data.
CREATE FUNCTION medical.forget(id text, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
    patient uuid;
    told jsonb;
BEGIN
    PERFORM @tidegate.refuse('subject: a patient must be a UUID')
      WHERE forget.id !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$';
    patient := forget.id::uuid;
    told := jsonb_build_object(
        'medical.entity', (SELECT count(*) FROM medical.entity AS e WHERE e.patient_id = patient));
    IF NOT dry_run THEN
        DELETE FROM medical.entity AS e WHERE e.patient_id = patient;
    END IF;
    RETURN jsonb_build_object('tables', told, 'groups', ARRAY['patient:' || patient]);
END $$;

SELECT @tidegate.declare_subject('form', 'forms.forget'), @tidegate.declare_subject('person', 'forms.forget_person'),
       @tidegate.declare_subject('application', 'checks.forget'), @tidegate.declare_subject('patient', 'medical.forget');

-- ANALYZE copies the most common values of a column. It copies none of these, which would outlive the person.
ALTER TABLE forms.form
    ALTER contact_name SET STATISTICS 0, ALTER contact_email SET STATISTICS 0, ALTER contact_phone SET STATISTICS 0,
    ALTER employee_national_id SET STATISTICS 0, ALTER employee_name SET STATISTICS 0, ALTER expert_name SET STATISTICS 0,
    ALTER need_reason SET STATISTICS 0, ALTER need_requirement SET STATISTICS 0;
ALTER TABLE forms.message ALTER content SET STATISTICS 0;
ALTER INDEX forms.message_case ALTER 1 SET STATISTICS 0;
ALTER TABLE checks.issuing_check ALTER answer SET STATISTICS 0;
ALTER TABLE medical.entity ALTER content SET STATISTICS 0, ALTER facts SET STATISTICS 0;

-- Whether an event of a form is in the queue. A function, so that it is asked of old forms only.
CREATE FUNCTION forms.has_events(form_id text) RETURNS boolean
    LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.group_key = 'form:' || has_events.form_id)
$$;

-- Removes closed forms that have not changed since, up to the given number, and messages without a form. A
-- form that nobody has decided on stays, and so does one with an event in the queue.
CREATE FUNCTION forms.expire(until timestamptz, most integer, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
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

-- Removes checks that ended and have not changed since. An open check never expires.
CREATE FUNCTION checks.expire(until timestamptz, most integer, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
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
    SELECT EXISTS (SELECT FROM @tidegate.event_queue AS q WHERE q.group_key = 'patient:' || has_jobs.patient_id)
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

-- Removes trees of entities that no job has changed since, each as a whole and only if all of it is closed.
CREATE FUNCTION medical.expire(until timestamptz, most integer, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql AS $$
DECLARE
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
