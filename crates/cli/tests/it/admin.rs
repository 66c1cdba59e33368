//! `status`, `top` and `logs` with an admin endpoint that the test plays.

use crate::world::{World, finish, snapshot};
use axum::{Router, extract::RawQuery, routing};

const TOP: &str = r#"{"models":[
    {"name":"fraud","requests":12,"errors":2,"p50_ms":0.4,"p99_ms":1.13,"rate":0.5},
    {"name":"iris","requests":90000,"errors":0,"p50_ms":0.31,"p99_ms":0.84,"rate":214.3},
    {"name":"quiet","requests":0,"errors":0,"p50_ms":null,"p99_ms":null,"rate":0.0}]}"#;

fn admin(world: &World) -> String {
    let listener = world.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let logs = |RawQuery(query): RawQuery| async move {
        format!("first line\nasked: {}\n", query.unwrap_or_default())
    };
    let app = Router::new().route("/top", routing::get(|| async { TOP })).route("/logs", routing::get(logs));
    world.runtime.spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

#[test]
fn figures_stand_beside_the_models() {
    let world = World::new();
    world.serve("iris", "  storageUri: /m\n");
    world.serve("fraud", "  storageUri: /m\n");
    world.serve("unasked", "  storageUri: /m\n");
    let admin = admin(&world);
    let run = |args: &[&str]| finish(world.command(args).env("GANTRY_ADMIN", &admin)).ok();
    snapshot("status-with-figures", &run(&["status"]));
    snapshot("top", &run(&["top"]));
    assert_eq!(run(&["top", "models"]).lines().count(), 4);
}

#[test]
fn logs_are_passed_through() {
    let world = World::without_server();
    let admin = admin(&world);
    let run = |args: &[&str]| finish(world.command(args).env("GANTRY_ADMIN", &admin));
    for (args, query) in [
        (&["logs"][..], "lines=100"),
        (&["logs", "model/iris", "--lines", "5"], "lines=5&model=iris"),
        (&["logs", "-f", "server/builtin"], "lines=100&follow=1&server=builtin"),
    ] {
        assert_eq!(run(args).ok(), format!("first line\nasked: {query}\n"), "{args:?}");
    }
    let wrong = run(&["logs", "model/a&b=c"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    let missing = finish(world.command(&["logs"]).env("GANTRY_ADMIN", world.scheduler.to_string()));
    assert_ne!(missing.code, 0, "a scheduler is no admin endpoint: {missing:?}");
}
