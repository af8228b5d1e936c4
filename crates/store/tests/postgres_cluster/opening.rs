//! Opening: the schema, the serving role's rights and timeouts, and TLS.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use engine::ports::CommitOutcome;
use rig::postgres::{Postgres, majors, shared};
use store::postgres::{
    OpenError, PostgresConfig, PostgresStore, SCHEMA_VERSION, SchemaState, check, migrate,
};

use crate::kit::{LEASE, accept, commit, keeper, lane, name, node, open};

fn config(url: &str) -> PostgresConfig {
    PostgresConfig {
        url: url.to_owned(),
        pool_size: 4,
        lease: LEASE,
    }
}

async fn refusal(url: &str) -> OpenError {
    match PostgresStore::open(config(url)).await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn concurrent_migrations_apply_once_on_every_major() {
    for major in majors() {
        let database = shared(major).database("migrate");
        let url = database.url();
        assert_eq!(
            check(url).await.expect("check"),
            SchemaState::Behind { found: 0 }
        );
        let error = refusal(url).await.to_string();
        assert!(error.contains("lanekeeper migrate"), "{error}");
        let at_once = tokio::join!(migrate(url, None, LEASE), migrate(url, None, LEASE));
        let mut applied = [at_once.0.expect("migrate"), at_once.1.expect("migrate")];
        applied.sort();
        assert_eq!(applied, [vec![], (1..=SCHEMA_VERSION).collect()]);
        assert_eq!(check(url).await.expect("check"), SchemaState::Current);
        open(url, LEASE).await;

        database.exec("INSERT INTO schema_version VALUES (99, 'future', now())");
        assert!(matches!(
            refusal(url).await,
            OpenError::Newer { found: 99, .. }
        ));
        assert!(migrate(url, None, LEASE).await.is_err());
    }
}

#[tokio::test]
async fn role_without_timeouts_is_refused_with_instructions() {
    let database = shared(majors()[0]).database("role");
    migrate(database.url(), None, LEASE).await.expect("migrate");
    let role = format!("server_{}_{}", std::process::id(), name());
    database.exec(&format!("CREATE ROLE {role} LOGIN PASSWORD 'top-secret'"));
    let url = format!(
        "postgres://{role}:top-secret@127.0.0.1:{}/{}",
        database.server().port(),
        database.name()
    );
    let error = refusal(&url).await.to_string();
    assert!(error.contains("refused"), "no rights yet: {error}");
    assert!(!error.contains("top-secret"), "{error}");

    database.exec(&format!("GRANT SELECT ON schema_version TO {role}"));
    let error = refusal(&url).await.to_string();
    let advice = format!("lanekeeper migrate --role {role}");
    assert!(error.contains("statement_timeout = 0"), "{error}");
    assert!(error.contains(&advice), "{error}");

    migrate(database.url(), Some(&role), LEASE)
        .await
        .expect("migrate");
    let store = open(&url, LEASE).await;
    let keeper = keeper(&*store, &node("a"), lane(1)).await;
    let outcome = commit(&*store, &accept(&keeper, 1)).await;
    assert_eq!(outcome, CommitOutcome::Applied);
    drop(store);
    let compiles_nothing = database.query_value(&format!(
        "SELECT 'jit=off' = ANY (setconfig) FROM pg_db_role_setting \
         WHERE setrole = '{role}'::regrole"
    ));
    assert_eq!(compiles_nothing.as_deref(), Some("t"));
    let forgets = format!(
        "ALTER ROLE {role} IN DATABASE {} SET synchronous_commit = off",
        database.name()
    );
    database.exec(&forgets);
    let error = refusal(&url).await.to_string();
    assert!(error.contains("synchronous_commit = off"), "{error}");
    assert!(error.contains(&advice), "{error}");
    migrate(database.url(), Some(&role), LEASE)
        .await
        .expect("migrate");
    drop(open(&url, LEASE).await);

    let short = PostgresConfig {
        lease: Duration::from_secs(2),
        ..config(&url)
    };
    let too_long = PostgresStore::open(short).await.err();
    assert!(
        matches!(too_long, Some(OpenError::Timeout { .. })),
        "{too_long:?}"
    );
    drop(database);
    shared(majors()[0]).exec(&format!("DROP ROLE {role}"));
}

#[tokio::test]
async fn unreachable_database_is_named_without_its_password() {
    let bad_address = refusal("mysql://me:hidden@h/d").await;
    assert!(matches!(bad_address, OpenError::Address(_)));
    for url in [
        "postgres://me:hidden@127.0.0.1:1/d",
        "postgres://me:hidden@127.0.0.1:notaport/d",
        "postgres://me:hidden@127.0.0.1:1/d?sslmode=always",
        "postgres://me:hidden@127.0.0.1:1/d?sslmode=verify-full&sslrootcert=/nowhere",
    ] {
        let error = refusal(url).await;
        let shown = format!("{error} {error:?} {:?}", config(url));
        assert!(!shown.contains("hidden"), "{shown}");
    }
}

#[tokio::test]
async fn standby_is_refused() {
    let postgres = Postgres::start(majors()[0]);
    let database = postgres.database("standby");
    migrate(database.url(), None, LEASE).await.expect("migrate");
    let standby = postgres.standby(false);
    let error = refusal(&standby.url_of(database.name())).await;
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error}");
}

#[tokio::test]
async fn tls_is_verified_as_the_address_says() {
    let postgres = Postgres::start(majors()[0]);
    let database = postgres.database("tls");
    let folder = tempfile::tempdir().expect("a folder");
    let [ours, other] = ["ours", "other"].map(|name| authority(folder.path(), name));
    serve_tls(&postgres, folder.path());
    migrate(database.url(), None, LEASE).await.expect("migrate");
    let url = |host: &str, options: String| {
        let url = database.url().replacen("127.0.0.1", host, 1);
        format!("{url}?{options}")
    };
    let encrypted = "SELECT bool_and(ssl)::text FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE application_name = 'lanekeeper'";
    for options in [
        String::new(),
        "sslmode=require".into(),
        format!("sslmode=verify-full&sslrootcert={ours}"),
    ] {
        let store = open(&url("localhost", options.clone()), LEASE).await;
        keeper(&*store, &node("a"), lane(1)).await;
        assert_eq!(
            postgres.query_value(encrypted).as_deref(),
            Some("true"),
            "{options}"
        );
    }
    let plain = open(&url("localhost", "sslmode=disable".into()), LEASE).await;
    keeper(&*plain, &node("a"), lane(1)).await;
    drop(plain);
    // The certificate is made out to localhost.
    open(
        &url("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={ours}")),
        LEASE,
    )
    .await;
    for (host, mode, root) in [
        ("127.0.0.1", "verify-full", &ours),
        ("localhost", "verify-full", &other),
        ("localhost", "verify-ca", &other),
        ("localhost", "require", &other),
    ] {
        let options = format!("sslmode={mode}&sslrootcert={root}");
        let error = refusal(&url(host, options)).await;
        assert!(
            matches!(error, OpenError::NotReached(_)),
            "{host} {mode}: {error}"
        );
    }
}

/// Makes a root certificate; the path of it.
fn authority(folder: &Path, name: &str) -> String {
    let root = folder.join(format!("{name}.pem"));
    openssl(
        folder,
        &format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
             -keyout {name}.key -out {name}.pem -subj /CN={name}"
        ),
    );
    root.display().to_string()
}

/// Gives the server a certificate of our own authority, for `localhost`.
fn serve_tls(postgres: &Postgres, folder: &Path) {
    openssl(
        folder,
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key \
         -out server.csr -subj /CN=localhost",
    );
    std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost").expect("write");
    openssl(
        folder,
        "x509 -req -in server.csr -CA ours.pem -CAkey ours.key -CAcreateserial -days 2 \
         -extfile names -out server.crt",
    );
    let data = postgres.data();
    let owner = std::fs::metadata(&data).expect("the data folder");
    for file in ["server.key", "server.crt"] {
        let to = data.join(file);
        std::fs::copy(folder.join(file), &to).expect("copy");
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o600)).expect("chmod");
        std::os::unix::fs::chown(&to, Some(owner.uid()), Some(owner.gid())).expect("chown");
    }
    postgres.config(&[("ssl", "on")]);
}

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("openssl is installed");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments}: {errors}");
}
