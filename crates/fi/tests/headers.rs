//! What is written down of libfabric's headers by hand is what they say, where they are.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;
use toe_fi::sys;

#[test]
#[allow(clippy::cast_lossless, reason = "the numbers are of several types")]
fn layouts_and_numbers_are_those_of_the_headers() {
    if !std::path::Path::new("/usr/include/rdma/providers/fi_prov.h").exists() {
        println!("left out: no headers of libfabric (Debian: libfabric-dev)");
        return;
    }
    let mut source = String::from(
        "#include <stddef.h>\n#include <rdma/fabric.h>\n#include <rdma/fi_cm.h>\n#include <rdma/fi_domain.h>\n\
         #include <rdma/fi_endpoint.h>\n#include <rdma/fi_eq.h>\n#include <rdma/fi_errno.h>\n#include <rdma/fi_rma.h>\n\
         #include <rdma/providers/fi_prov.h>\n",
    );
    let mut same = |theirs: &str, ours: u64| {
        let _ = writeln!(source, "_Static_assert(({theirs}) == {ours}ull, \"{theirs}\");");
    };
    macro_rules! sizes {
        ($($name:ident $theirs:literal;)*) => { $(
            same(concat!("sizeof(", $theirs, ")"), size_of::<sys::$name>() as u64);
        )* };
    }
    sizes! {
        Fid "struct fid"; TxAttr "struct fi_tx_attr"; RxAttr "struct fi_rx_attr"; EpAttr "struct fi_ep_attr";
        DomainAttr "struct fi_domain_attr"; FabricAttr "struct fi_fabric_attr"; Info "struct fi_info";
        Provider "struct fi_provider"; FabricFid "struct fid_fabric"; DomainFid "struct fid_domain";
        MrAttr "struct fi_mr_attr"; MrFid "struct fid_mr"; MrOps "struct fi_ops_mr"; EqAttr "struct fi_eq_attr";
        EqEntry "struct fi_eq_entry"; EqCmEntry "struct fi_eq_cm_entry"; EqErrEntry "struct fi_eq_err_entry";
        EqOps "struct fi_ops_eq"; CqAttr "struct fi_cq_attr"; CqTaggedEntry "struct fi_cq_tagged_entry";
        CqErrEntry "struct fi_cq_err_entry"; CqOps "struct fi_ops_cq"; EpOps "struct fi_ops_ep";
        CmOps "struct fi_ops_cm"; Msg "struct fi_msg"; MsgOps "struct fi_ops_msg"; RmaIov "struct fi_rma_iov";
        MsgRma "struct fi_msg_rma"; RmaOps "struct fi_ops_rma"; EpFid "struct fid_ep"; PepFid "struct fid_pep";
    }
    macro_rules! offsets {
        ($($name:ident $field:ident $theirs:literal;)*) => { $(
            same(concat!("offsetof(", $theirs, ", ", stringify!($field), ")"), offset_of!(sys::$name, $field) as u64);
        )* };
    }
    offsets! {
        Ops control "struct fi_ops"; Ops ops_open "struct fi_ops"; FabricOps eq_open "struct fi_ops_fabric";
        FabricOps trywait "struct fi_ops_fabric"; DomainOps cq_open "struct fi_ops_domain";
        DomainOps endpoint "struct fi_ops_domain"; DomainOps query_collective "struct fi_ops_domain";
        Info handle "struct fi_info"; Info fabric_attr "struct fi_info"; DomainAttr mr_mode "struct fi_domain_attr";
        DomainAttr caps "struct fi_domain_attr"; EpAttr rx_ctx_cnt "struct fi_ep_attr"; MrAttr device "struct fi_mr_attr";
        TxAttr inject_size "struct fi_tx_attr"; CqErrEntry err "struct fi_cq_err_entry"; CqOps signal "struct fi_ops_cq";
        EqOps sread "struct fi_ops_eq"; CmOps accept "struct fi_ops_cm"; MsgOps inject "struct fi_ops_msg";
        RmaOps inject "struct fi_ops_rma"; RmaOps writedata "struct fi_ops_rma"; Provider getinfo "struct fi_provider";
        EpFid rma "struct fid_ep"; MsgRma context "struct fi_msg_rma";
    }
    macro_rules! numbers {
        ($($name:ident)*) => { $( same(concat!("FI_", stringify!($name)), u64::from_ne_bytes((sys::$name as i64).to_ne_bytes())); )* };
    }
    numbers! {
        MSG RMA READ WRITE RECV SEND TRANSMIT REMOTE_READ REMOTE_WRITE REMOTE_CQ_DATA MORE PEEK COMPLETION INJECT
        INJECT_COMPLETE TRANSMIT_COMPLETE LOCAL_COMM REMOTE_COMM SOURCE SELECTIVE_COMPLETION FORMAT_UNSPEC SOCKADDR
        SOCKADDR_IN6 EP_UNSPEC EP_MSG PROGRESS_UNSPEC PROGRESS_MANUAL THREAD_SAFE RM_ENABLED AV_UNSPEC MR_BASIC
        MR_SCALABLE ORDER_STRICT WAIT_NONE WAIT_UNSPEC WAIT_FD WAIT_YIELD CQ_COND_NONE CLASS_FABRIC CLASS_DOMAIN
        CLASS_EP CLASS_PEP CLASS_MR CLASS_EQ CLASS_CQ CLASS_CONNREQ GETWAIT ENABLE BACKLOG GETWAITOBJ OPT_ENDPOINT
        OPT_CM_DATA_SIZE NOTIFY CONNREQ CONNECTED SHUTDOWN CQ_FORMAT_UNSPEC CQ_FORMAT_CONTEXT CQ_FORMAT_MSG
        CQ_FORMAT_DATA CQ_FORMAT_TAGGED ETOOSMALL EOPBADSTATE EAVAIL ENOEQ ENOCQ ETRUNC ENOKEY
    }
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = dir.join("headers.c");
    std::fs::write(&file, source).expect("a file");
    let cc = Command::new("cc").arg("-fsyntax-only").arg(&file).output().expect("cc");
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
}
