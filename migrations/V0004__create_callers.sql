-- The callers of the HTTP interface, and the keys that sign links to jobs. They have a schema of their own,
-- because neither drains nor readers of figures need access.

CREATE SCHEMA callers;

-- Links to jobs are signed so that they cannot be guessed. The newest key signs. A link signed with any
-- stored key is valid.
CREATE TABLE callers.link_key (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- 244 bits from the server's own random generator, which needs no extension.
    secret     bytea       NOT NULL DEFAULT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT secret_is_32_bytes CHECK (octet_length(secret) = 32)
);

INSERT INTO callers.link_key DEFAULT VALUES;

-- A key is shown once. The stored digest can verify a key but does not help to forge one. There is no salt
-- and no slow digest, because 256 random bits cannot be guessed either way. A caller that AWS IAM identifies
-- has a row with the digest of its ARN, which is also the label.
CREATE TABLE callers.api_key (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest     bytea       NOT NULL,
    label      text        NOT NULL,
    -- The client on whose behalf its holder calls, and the user, if it is always the same one.
    client_id  uuid        NOT NULL,
    user_id    uuid,
    scopes     text[]      NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT digest_is_32_bytes CHECK (octet_length(digest) = 32),
    CONSTRAINT label_is_1_to_100_characters CHECK (char_length(label) BETWEEN 1 AND 100),
    CONSTRAINT scopes_are_jobs_approvals_forms_letters_or_metrics
        CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['jobs', 'approvals', 'forms', 'letters', 'metrics'])
);

-- A principal that was revoked can be permitted again.
CREATE UNIQUE INDEX api_key_digest ON callers.api_key (digest) WHERE revoked_at IS NULL;

-- Returns what a given key permits, or nothing if it is unknown, expired or revoked. It is a function, so
-- that the HTTP server can ask for one key and see no other.
CREATE FUNCTION callers.api_key_of(digest bytea) RETURNS TABLE (id bigint, client_id uuid, user_id uuid, scopes text[])
    LANGUAGE sql STABLE SECURITY DEFINER AS $$
    SELECT k.id, k.client_id, k.user_id, k.scopes
      FROM callers.api_key AS k
     WHERE k.digest = api_key_of.digest AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
$$;

-- As with the queue's own operations, a change and its audit row are one transaction. Readers of figures may
-- read the audit, because it contains no personal data.
CREATE FUNCTION callers.create_api_key(
    digest bytea, label text, client_id uuid, user_id uuid, scopes text[], lifetime interval, reason text, actor text DEFAULT NULL
) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    made callers.api_key;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    INSERT INTO callers.api_key AS k (digest, label, client_id, user_id, scopes, expires_at)
    VALUES (create_api_key.digest, create_api_key.label, create_api_key.client_id, create_api_key.user_id, create_api_key.scopes,
            clock_timestamp() + create_api_key.lifetime)
    RETURNING k.* INTO made;
    INSERT INTO @tidegate.audit (action, actor, filter, count, reason)
    VALUES ('create_api_key', create_api_key.actor, to_jsonb(made) - '{digest,user_id,created_at,revoked_at}'::text[], 1,
            create_api_key.reason);
    RETURN to_jsonb(made) - '{digest,revoked_at}'::text[] || '{"action": "create_api_key"}';
END $$;

CREATE FUNCTION callers.revoke_api_key(id bigint, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    changed boolean;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    PERFORM @tidegate.refuse('id: must be the id of an API key, got ' || coalesce(revoke_api_key.id::text, 'none'))
      WHERE NOT EXISTS (SELECT FROM callers.api_key AS k WHERE k.id = revoke_api_key.id);
    UPDATE callers.api_key AS k SET revoked_at = clock_timestamp() WHERE k.id = revoke_api_key.id AND k.revoked_at IS NULL;
    changed := FOUND;
    PERFORM @tidegate.record_change('revoke_api_key', actor, jsonb_build_object('id', id), changed::integer, reason);
    RETURN jsonb_build_object('action', 'revoke_api_key', 'id', id, 'changed', changed);
END $$;

-- Signs links with a new key from now on. Links of earlier keys stay valid, unless the earlier keys are
-- removed.
CREATE FUNCTION callers.rotate_link_key(forget boolean, reason text, actor text DEFAULT NULL) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    newest bigint;
    forgotten bigint := 0;
BEGIN
    PERFORM @tidegate.check_operator(reason, actor, true);
    INSERT INTO callers.link_key DEFAULT VALUES RETURNING id INTO newest;
    IF rotate_link_key.forget THEN
        DELETE FROM callers.link_key AS k WHERE k.id < newest;
        GET DIAGNOSTICS forgotten = ROW_COUNT;
    END IF;
    PERFORM @tidegate.record_change('rotate_link_key', actor, jsonb_build_object('forget', forget), forgotten, reason);
    RETURN jsonb_build_object('action', 'rotate_link_key', 'id', newest, 'forgotten', forgotten);
END $$;
