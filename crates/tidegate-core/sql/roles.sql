-- Six roles for the logins that work with the queue. None of them can log in itself: grant each login the
-- roles that it needs (`GRANT tidegate_drain TO my_function`). The roles are optional. The command `tidegate
-- migrate --roles` runs this script and then the grants, which stand at the ends of the other files. Where
-- the roles are in use, every migration does so again.
--
-- Only the creation of missing roles requires CREATEROLE. If the owner of the schema lacks that right, an
-- administrator creates the six roles first, with the comment that make_role() gives them. A superuser is
-- not needed.
--
-- | role             | may                                                                            |
-- |------------------|--------------------------------------------------------------------------------|
-- | tidegate_publish | publish, by the functions or by a plain INSERT of an ungrouped event           |
-- | tidegate_drain   | lease, finalize, retry, publish follow-ups, take in messages; handlers' tables |
-- | tidegate_pull    | handle events by SQL: poll, finalize, retry, extend, settle                    |
-- | tidegate_operate | replay, requeue, cancel, pause, retention, cleanup …; reads everything         |
-- | tidegate_read    | figures, states and the text of errors; no payload, result or progress         |
-- | tidegate_jobs    | ask for what has become of an event whose id it knows: state, errors, result   |

SELECT @tidegate.make_role(r)
  FROM unnest(ARRAY['@tidegate_publish', '@tidegate_drain', '@tidegate_pull', '@tidegate_operate', '@tidegate_read', '@tidegate_jobs']) AS r;

GRANT USAGE ON SCHEMA @tidegate TO @tidegate_publish, @tidegate_drain, @tidegate_pull, @tidegate_operate, @tidegate_read, @tidegate_jobs;
