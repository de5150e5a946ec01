-- How the systems' own tables forget somebody, and what they have kept for long enough. Functions of the owner's: whoever
-- may forget needs no right on a table.

-- A form, or all forms about an employee. Their messages go with them; a grant stays, which names a company, and no longer
-- leads to a form.
CREATE FUNCTION forms.forget(form_id text, national_id text, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    AS $$
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

-- All that is kept of a patient. The audit stays, as it must: it has ids, and no word of what is the matter.
CREATE FUNCTION medical.forget(patient_id uuid, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '20s'
    AS $$
DECLARE
    told jsonb := jsonb_build_object(
        'medical.entity', (SELECT count(*) FROM medical.entity AS e WHERE e.patient_id = forget.patient_id));
BEGIN
    IF NOT forget.dry_run THEN
        DELETE FROM medical.entity AS e WHERE e.patient_id = forget.patient_id;
    END IF;
    RETURN told;
END $$;

-- Forms that have not changed for so long, whatever became of them, at most so many; and messages about none.
CREATE FUNCTION forms.expire(kept interval, most integer, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
    AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() - expire.kept;
    ids text[];
    messages bigint;
BEGIN
    IF expire.dry_run THEN
        RETURN jsonb_build_object(
            'forms.form', (SELECT count(*) FROM forms.form AS f WHERE f.updated_at < until),
            'forms.message', (SELECT count(*) FROM forms.message AS m LEFT JOIN forms.form AS f ON f.id = m.form_id
                               WHERE coalesce(f.updated_at, m.received_at) < until));
    END IF;
    ids := ARRAY(SELECT f.id FROM forms.form AS f WHERE f.updated_at < until LIMIT expire.most FOR UPDATE SKIP LOCKED);
    UPDATE forms.awarded_grant AS g SET form_id = NULL WHERE g.form_id = ANY (ids);
    DELETE FROM forms.message AS m
     WHERE m.form_id = ANY (ids)
        OR m.id IN (SELECT o.id FROM forms.message AS o WHERE o.form_id IS NULL AND o.received_at < until LIMIT expire.most);
    GET DIAGNOSTICS messages = ROW_COUNT;
    DELETE FROM forms.form AS f WHERE f.id = ANY (ids);
    RETURN jsonb_build_object('forms.form', cardinality(ids), 'forms.message', messages);
END $$;

-- Checks that have ended so long ago; one that is open is never old.
CREATE FUNCTION checks.expire(kept interval, most integer, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
    AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() - expire.kept;
    ended CONSTANT text[] := ARRAY['DONE', 'OVERDUE', 'REFUSED'];
    ids CONSTANT bigint[] := ARRAY(SELECT i.id FROM checks.issuing_check AS i
                                    WHERE i.work_statusom = ANY (ended) AND i.updated_at < until
                                    LIMIT CASE WHEN NOT expire.dry_run THEN expire.most END);
    removed bigint := cardinality(ids);
BEGIN
    IF NOT expire.dry_run THEN
        DELETE FROM checks.issuing_check AS i
         WHERE i.id = ANY (ids) AND i.work_statusom = ANY (ended) AND i.updated_at < until;
        GET DIAGNOSTICS removed = ROW_COUNT;
    END IF;
    RETURN jsonb_build_object('checks.issuing_check', removed);
END $$;

-- Entities that no job has changed for so long.
CREATE FUNCTION medical.expire(kept interval, most integer, dry_run boolean) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
    AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() - expire.kept;
    removed bigint;
BEGIN
    IF expire.dry_run THEN
        SELECT count(*) INTO removed FROM medical.entity AS e WHERE e.updated_at < until;
    ELSE
        DELETE FROM medical.entity AS e
         WHERE e.ctid = ANY (ARRAY(SELECT o.ctid FROM medical.entity AS o WHERE o.updated_at < until
                                    LIMIT expire.most FOR UPDATE SKIP LOCKED)) AND e.updated_at < until;
        GET DIAGNOSTICS removed = ROW_COUNT;
    END IF;
    RETURN jsonb_build_object('medical.entity', removed);
END $$;
