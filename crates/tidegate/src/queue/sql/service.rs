//! Statements about outside services.

use tokio_postgres::types::Type;

use super::Statement;

/// Reports the results of a worker's calls of a service.
pub static REPORT_SERVICE: Statement = Statement {
    name: "report_service",
    params: &[
        Type::TEXT,
        Type::UUID,
        Type::BOOL,
        Type::INT4,
        Type::TEXT,
        Type::FLOAT8,
        Type::TEXT_ARRAY,
        Type::BOOL,
        Type::TEXT,
    ],
    text: "SELECT tidegate.report_service($1, $2, $3, $4, $5, $6, $7, $8, $9)::text",
};

/// Requests places and starts at a limited service.
pub static CLAIM_SERVICE: Statement = Statement {
    name: "claim_service",
    params: &[
        Type::TEXT,
        Type::UUID,
        Type::INT4,
        Type::INT4,
        Type::INT4,
        Type::FLOAT8,
    ],
    text: "SELECT c.places, c.starting, c.first_in, c.apart FROM tidegate.claim_service($1, $2, $3, $4, $5, $6) AS c",
};

/// All services about which anything was reported.
pub static SERVICES: Statement = Statement {
    name: "services",
    params: &[],
    text: "SELECT to_jsonb(s)::text FROM tidegate.services AS s ORDER BY s.state = 'closed', s.since, s.service",
};

/// All statements of this file.
pub static ALL: &[&Statement] = &[&REPORT_SERVICE, &CLAIM_SERVICE, &SERVICES];
