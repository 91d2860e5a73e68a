//! Damaged checkpoints: each is refused saying which file is wrong, before anything is set.

use super::*;
use sha2::{Digest as _, Sha256};

/// The first file of tensors.
const MODEL: &str = "model-00000-of-00001.safetensors";
const MANIFEST: &str = "manifest.json";

/// Makes the manifest fit the files again, as one who forges them would.
fn forge(dir: &Path) {
    let path = dir.join(MANIFEST);
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).expect("it is there")).expect("the test can");
    for file in manifest["files"].as_array_mut().expect("it is there") {
        let data = std::fs::read(dir.join(file["name"].as_str().expect("it is there"))).expect("the test can");
        file["bytes"] = data.len().into();
        file["sha256"] = Sha256::digest(&data).iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    }
    std::fs::write(path, manifest.to_string()).expect("it is there");
}

fn change(path: PathBuf, change: impl FnOnce(&mut Vec<u8>)) {
    let mut data = std::fs::read(&path).expect("it is there");
    change(&mut data);
    std::fs::write(path, data).expect("it is there");
}

fn replace(dir: &Path, from: &str, to: &str) {
    let path = dir.join(MANIFEST);
    let text = std::fs::read_to_string(&path).expect("it is there");
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replace(from, to)).expect("it is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_checkpoint_is_refused_by_name_and_changes_nothing() {
    let (_base, dir) = place();
    let cluster = Cluster::start(2);
    let run = cluster.run(1);
    let w = f32s("w", &[1000], Placement::Auto);
    initialize(&run, &w, &data(&w, 1.0)).await;
    step(&run, &[&w], 0).await;
    save(&cluster.options(&dir)).await.unwrap();
    initialize(&run, &w, &data(&w, 2.0)).await;

    type Spoil = fn(&Path);
    let cases: [(Spoil, &str); 17] = [
        (|dir| std::fs::remove_dir_all(dir).unwrap(), "can't read"),
        (|dir| std::fs::remove_file(dir.join(MANIFEST)).unwrap(), "it has no manifest.json"),
        (|dir| std::fs::remove_file(dir.join(MODEL)).unwrap(), "it has no model-00000-of-00001.safetensors"),
        (|dir| change(dir.join(MANIFEST), |data| data.truncate(data.len() / 2)), "manifest.json makes no sense"),
        (|dir| change(dir.join(MODEL), |data| data.truncate(data.len() - 1)), "but was written with"),
        (|dir| change(dir.join(MODEL), |data| data.push(0)), "but was written with"),
        (|dir| change(dir.join(MODEL), |data| *data.last_mut().unwrap() ^= 1), "its sha256 is"),
        (|dir| change(dir.join(MODEL), |data| data[7] = 0x80), "its header is said to have"),
        (
            |dir| {
                change(dir.join(MODEL), |data| data[..8].copy_from_slice(&(1_u64 << 63).to_le_bytes()));
                forge(dir);
            },
            "its header is said to have 9223372036854775808 bytes",
        ),
        (
            |dir| {
                change(dir.join(MODEL), |data| data.truncate(100));
                forge(dir);
            },
            "model-00000-of-00001.safetensors: its header",
        ),
        (
            |dir| {
                std::fs::remove_file(dir.join(MODEL)).unwrap();
                std::os::unix::fs::symlink("/dev/zero", dir.join(MODEL)).unwrap();
            },
            "model-00000-of-00001.safetensors",
        ),
        (
            |dir| {
                std::fs::remove_file(dir.join(MODEL)).unwrap();
                std::fs::create_dir(dir.join(MODEL)).unwrap();
            },
            "it is a directory, not a file",
        ),
        (|dir| replace(dir, MODEL, "../model.safetensors"), "no name of a checkpoint's file"),
        (|dir| replace(dir, "1000", "999"), "is F32[1000], not `f32[999]`"),
        (|dir| replace(dir, "1000", "1000000000000"), "not `f32[1000000000000]`"),
        (|dir| replace(dir, "\"tensor\":\"w\"", "\"tensor\":\"v\""), "it has no tensor `v`"),
        (|dir| replace(dir, "\"w/adam/v\"", "\"w/adam/x\""), "it has no tensor `w/adam/x`"),
    ];
    for (index, (spoil, why)) in cases.into_iter().enumerate() {
        let (_base, copy) = place();
        std::fs::create_dir(&copy).unwrap();
        for name in files(&dir) {
            std::fs::copy(dir.join(&name), copy.join(&name)).unwrap();
        }
        spoil(&copy);
        let error = restore(&cluster.options(&copy)).await.expect_err(why);
        assert_eq!(error.exit(), Exit::Files, "{error}");
        let text = format!("{:#}", anyhow::Error::from(error));
        assert!(text.contains(why), "case {index}: {text} has no `{why}`");
    }
    let value = read(&run, &[&w]).await.remove(0);
    assert!(value.tensor.data == data(&w, 2.0), "nothing was set");
    restore(&cluster.options(&dir)).await.unwrap();
    cluster.stop().await;
}
