//! One namespace's scheduler: the connection, what is heard over it, and the calls that go over it.

use super::{Answer, Book, Reach, call};
use futures::{StreamExt as _, stream::BoxStream};
use gantry_core::mutant;
use gantry_proto::scheduler::{self as pb, scheduler_client::SchedulerClient};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::watch;
use tonic::{Status, transport::Channel};

/// Who we are, by the name under which Seldon's operator subscribes.
const SUBSCRIBER: &str = "seldon manager";
/// Largest message that is taken.
const LARGEST: usize = 64 << 20;
/// The first wait before a new connection, and the longest.
const WAITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));
/// How long the answer to "what have you got" may take.
const SNAPSHOT_TIME: Duration = Duration::from_mins(1);

/// What a link has to say to the controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Something about a model.
    Model(String),
    /// Something about a server.
    Server(String),
    /// Everything of the namespace is to be looked at again: it is connected, or no longer is.
    Everything,
}

/// A handle to a namespace's link; the link ends with [`Link::close`].
#[derive(Clone, Debug)]
pub struct Link {
    client: Arc<Mutex<Option<SchedulerClient<Channel>>>>,
    closed: watch::Sender<bool>,
}

impl Link {
    /// Opens the link: it connects, listens, and connects again, until it is closed. `servers` are those that a scheduler
    /// is told of when it is met; `None` when nothing may be said.
    pub fn open(
        namespace: &str,
        reach: Arc<dyn Reach>,
        book: Arc<Book>,
        servers: impl Fn() -> Option<Vec<pb::ServerNotify>> + Send + Sync + 'static,
        news: impl Fn(News) + Send + Sync + 'static,
    ) -> Self {
        let (closed, mut end) = watch::channel(false);
        let link = Self { client: Arc::default(), closed };
        book.open(namespace);
        let line = Line {
            namespace: namespace.to_owned(),
            reach,
            book,
            link: link.clone(),
            servers: Box::new(servers),
            news: Box::new(news),
        };
        tokio::spawn(async move {
            tokio::select! {
                () = line.live() => {}
                _ = end.wait_for(|closed| *closed) => {}
            }
        });
        link
    }

    /// Ends the link.
    pub fn close(&self) {
        self.closed.send_replace(true);
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn client(&self) -> Option<SchedulerClient<Channel>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks for a model.
    pub async fn load(&self, model: pb::Model) -> Answer {
        match self.client() {
            Some(mut client) => call::load(&mut client, model).await,
            None => not_connected(),
        }
    }

    /// Asks for a model to go.
    pub async fn unload(&self, request: pb::UnloadModelRequest) -> Answer {
        match self.client() {
            Some(mut client) => call::unload(&mut client, request).await,
            None => not_connected(),
        }
    }

    /// Announces a server.
    pub async fn notify(&self, server: pb::ServerNotify) -> Answer {
        match self.client() {
            Some(mut client) => call::notify(&mut client, vec![server], false).await,
            None => not_connected(),
        }
    }
}

fn not_connected() -> Answer {
    Answer::Later("the scheduler is not connected".into())
}

struct Line {
    namespace: String,
    reach: Arc<dyn Reach>,
    book: Arc<Book>,
    link: Link,
    servers: Box<dyn Fn() -> Option<Vec<pb::ServerNotify>> + Send + Sync>,
    news: Box<dyn Fn(News) + Send + Sync>,
}

impl Line {
    async fn live(&self) {
        let mut wait = WAITS.0;
        loop {
            let begun = tokio::time::Instant::now();
            let why = match self.reach.connect(&self.namespace).await {
                Ok(channel) => self.converse(channel).await,
                Err(why) => why,
            };
            *self.link.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let first = self.book.silence(&self.namespace).is_none();
            self.book.lost(&self.namespace, &why);
            if first {
                tracing::warn!(namespace = %self.namespace, "the scheduler is lost: {why}");
                (self.news)(News::Everything);
            }
            if mutant::is("does_not_connect_again") {
                std::future::pending::<()>().await;
            }
            // A conversation that lasted begins the waits anew.
            if begun.elapsed() > WAITS.1 {
                wait = WAITS.0;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAITS.1);
        }
    }

    /// Listens until the connection ends; returns why.
    async fn converse(&self, channel: Channel) -> String {
        let mut client = SchedulerClient::new(channel).max_decoding_message_size(LARGEST);
        self.book.begin(&self.namespace);
        match self.open_ears(&mut client).await {
            Ok(ears) => {
                *self.link.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
                self.book.complete(&self.namespace);
                tracing::info!(namespace = %self.namespace, "the scheduler is connected");
                if !mutant::is("tells_nobody_of_a_connection") {
                    (self.news)(News::Everything);
                }
                self.listen(ears).await
            }
            Err(status) => format!("the scheduler does not say what it has: {}", status.message()),
        }
    }

    /// Subscribes first and asks for everything then, so that nothing falls between.
    async fn open_ears(&self, client: &mut SchedulerClient<Channel>) -> Result<Ears, Status> {
        let name = || SUBSCRIBER.to_owned();
        let opening = async {
            let control = client
                .subscribe_control_plane(pb::ControlPlaneSubscriptionRequest { subscriber_name: name() })
                .await?
                .into_inner();
            self.introduce(client).await;
            let models = client
                .subscribe_model_status(pb::ModelSubscriptionRequest {
                    subscriber_name: name(),
                    is_model_gateway: false,
                })
                .await?
                .into_inner();
            let servers = client
                .subscribe_server_status(pb::ServerSubscriptionRequest { subscriber_name: name() })
                .await?
                .into_inner();
            let mut all = client
                .model_status(pb::ModelStatusRequest {
                    subscriber_name: name(),
                    model: None,
                    all_versions: false,
                })
                .await?
                .into_inner();
            while let Some(status) = all.message().await? {
                self.book.model(&self.namespace, status);
            }
            let mut all = client
                .server_status(pb::ServerStatusRequest { subscriber_name: name(), name: None })
                .await?
                .into_inner();
            while let Some(status) = all.message().await? {
                self.book.server(&self.namespace, &status);
            }
            Ok(Ears { models: models.boxed(), servers: servers.boxed(), control: control.boxed() })
        };
        let slow = || Status::deadline_exceeded(format!("no answer within {} s", SNAPSHOT_TIME.as_secs()));
        tokio::time::timeout(SNAPSHOT_TIME, opening).await.map_err(|_| slow())?
    }

    /// Tells the scheduler which Servers there are, and that these are all. Seldon's places no model and says nothing of
    /// any before it has heard that, for ten minutes; ours asks for Servers before anything else.
    async fn introduce(&self, client: &mut SchedulerClient<Channel>) {
        let Some(servers) = (self.servers)().filter(|_| !mutant::is("never_says_that_this_is_all")) else {
            return;
        };
        if let Answer::Refused(why) = call::notify(client, servers, true).await {
            // One of them is somebody else's there. Its own announcement is refused, too, and its status says why.
            tracing::debug!(namespace = %self.namespace, "the scheduler does not take all Servers: {why}");
            call::notify(client, Vec::new(), true).await;
        }
    }

    async fn listen(&self, mut ears: Ears) -> String {
        let ended = |status: Option<Status>| {
            status.map_or_else(
                || "the scheduler ended the conversation".to_owned(),
                |s| format!("the connection to the scheduler broke: {}", s.message()),
            )
        };
        loop {
            tokio::select! {
                heard = ears.models.next() => match heard {
                    Some(Ok(status)) => {
                        let name = status.model_name.clone();
                        if self.book.model(&self.namespace, status) && !mutant::is("is_deaf_to_the_scheduler") {
                            (self.news)(News::Model(name));
                        }
                    }
                    other => return ended(other.and_then(Result::err)),
                },
                heard = ears.servers.next() => match heard {
                    Some(Ok(status)) => {
                        if self.book.server(&self.namespace, &status) && !mutant::is("is_deaf_to_servers") {
                            (self.news)(News::Server(status.server_name));
                        }
                    }
                    other => return ended(other.and_then(Result::err)),
                },
                heard = ears.control.next() => match heard {
                    // The scheduler wants to hear of everything: it may have lost what it had.
                    Some(Ok(_)) if mutant::is("tells_nobody_of_a_connection") => {}
                    Some(Ok(_)) => (self.news)(News::Everything),
                    other => return ended(other.and_then(Result::err)),
                },
            }
        }
    }
}

struct Ears {
    models: BoxStream<'static, Result<pb::ModelStatusResponse, Status>>,
    servers: BoxStream<'static, Result<pb::ServerStatusResponse, Status>>,
    control: BoxStream<'static, Result<pb::ControlPlaneResponse, Status>>,
}
