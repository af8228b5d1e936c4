use domain::{Address, History};
use metrics_exporter_prometheus::PrometheusBuilder;
use tempfile::TempDir;

use super::*;

fn node(name: &str) -> NodeName {
    NodeName(name.into())
}

fn lanes(count: u8) -> WitnessedLanes {
    let lane = |number: u8| {
        let key = LaneKey {
            chain_id: ChainId(31_337),
            signer: Address::repeat_byte(number),
        };
        let seen = LaneWitness {
            history: History {
                store: 0xab,
                timeline: 1,
                restores: 2,
                suspicions: 0,
            },
            token: Token(3),
            batch_seq: 1_000_000_000 + u64::from(number),
            next_nonce: Nonce(7),
        };
        (key, seen)
    };
    (1..=count).map(lane).collect()
}

fn open(dir: &TempDir) -> WitnessFile {
    WitnessFile::open(dir.path(), &node("a")).expect("a folder of its own")
}

/// A folder in which node `a` has recorded two lanes.
async fn written() -> TempDir {
    let dir = TempDir::new().expect("a folder");
    let file = open(&dir);
    assert_eq!(file.read().await, None, "there is no file yet");
    file.write(&lanes(3)).await.expect("written");
    file.write(&lanes(2)).await.expect("replaced");
    dir
}

#[tokio::test]
async fn restarted_node_reads_what_it_wrote_last() {
    let dir = written().await;
    assert_eq!(open(&dir).read().await, Some(lanes(2)));
    assert!(!dir.path().join(NEW_FILE).exists());
}

#[tokio::test]
async fn damaged_file_is_no_opinion_and_is_kept_for_people() {
    let damages: [fn(String) -> Vec<u8>; 6] = [
        |_| Vec::new(),
        |text| text.as_bytes()[..text.len() / 2].to_vec(),
        |text| text.replace("1000000001", "1000000002").into_bytes(),
        |text| text.replacen("witness 1", "witness 2", 1).into_bytes(),
        |_| vec![0xff; 100],
        |text| (text + "further").into_bytes(),
    ];
    for damage in damages {
        let dir = written().await;
        let path = dir.path().join(FILE);
        let bytes = damage(fs::read_to_string(&path).expect("the file"));
        fs::write(&path, &bytes).expect("damaged");
        let recorder = PrometheusBuilder::new().build_recorder();
        let file = metrics::with_local_recorder(&recorder, || open(&dir));
        let page = recorder.handle().render();
        let count = "lanekeeper_witness_failures_total{op=\"read\"} 1\n";
        assert!(page.contains(count), "{page}");
        assert_eq!(file.read().await, None);
        let kept = fs::read(dir.path().join(DAMAGED_FILE));
        assert_eq!(kept.expect("kept"), bytes);
        file.write(&lanes(1)).await.expect("it is written anew");
        drop(file);
        assert_eq!(open(&dir).read().await, Some(lanes(1)));
    }
}

#[tokio::test]
async fn folder_of_another_node_is_refused() {
    let dir = written().await;
    let running = open(&dir);
    let refused = |name: &str| {
        let opened = WitnessFile::open(dir.path(), &node(name));
        opened.map(drop).expect_err("refused").to_string()
    };
    assert!(refused("b").contains("in use by another process"));
    drop(running);
    let text = refused("b");
    assert!(
        text.contains("belongs to node a, and this is node b"),
        "{text}"
    );
    assert_eq!(
        open(&dir).read().await,
        Some(lanes(2)),
        "nothing was changed"
    );
}

#[tokio::test]
async fn folder_that_cannot_be_written_is_no_reason_not_to_start() {
    let dir = TempDir::new().expect("a folder");
    let not_a_folder = dir.path().join("file");
    fs::write(&not_a_folder, "text").expect("a file");
    let file = WitnessFile::open(&not_a_folder, &node("a")).expect("it starts");
    assert_eq!(file.read().await, None);
    let error = file.write(&lanes(1)).await.expect_err("there is no folder");
    assert!(error.to_string().contains("file/witness"), "{error}");
}

#[test]
fn file_beyond_the_bound_is_not_read_as_a_whole() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join(FILE);
    let file = File::create(&path).expect("a file");
    file.set_len(BYTES_MAX * 4).expect("a sparse file");
    let text = read_file(&path).expect("read").expect("there is one");
    assert!(text.len() as u64 <= BYTES_MAX + 1);
    assert_eq!(
        parse(&node("a"), &text),
        Err(Unusable::Damaged("the checksum is missing"))
    );
}
