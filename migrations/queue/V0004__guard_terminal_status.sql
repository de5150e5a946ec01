-- An event ends once: its status in the log never changes again (decision 7, requirement E14). The
-- queue's own check already refuses a terminal status on a live row; a replay is a new event.

CREATE FUNCTION tidegate.refuse_status_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION 'event % has ended as %: its status does not change again', OLD.id, OLD.status
        USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER event_log_status_is_final
    BEFORE UPDATE ON tidegate.event_log
    FOR EACH ROW WHEN (NEW.status IS DISTINCT FROM OLD.status)
    EXECUTE FUNCTION tidegate.refuse_status_change();
