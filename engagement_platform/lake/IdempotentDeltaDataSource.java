package engagement_platform;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.DeltaOptions;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.SetTransaction;
import org.apache.spark.sql.delta.commands.WriteIntoDelta;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.CreatableRelationProvider;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.runtime.BoxedUnit;

/**
 * Appends as Delta's own data source does, but for where it looks whether the table has txnAppId and txnVersion.
 *
 * Delta 4.4 reconstructs the state of the table in a Spark job for that. The checksum of the table's last version names
 * the transactions, too, and comes with the version. Where it does not, since its writer left none or there are too
 * many, Delta looks as always.
 *
 * OpenLineage knows Delta's source by its name, which is why this one has it in its own.
 */
public final class IdempotentDeltaDataSource implements CreatableRelationProvider {
    @Override
    public BaseRelation createRelation(
            SQLContext context, SaveMode mode, Map<String, String> options, Dataset<Row> rows) {
        if (mode != SaveMode.Append) {
            throw new IllegalArgumentException("IdempotentDeltaDataSource only appends, and was asked to " + mode);
        }
        SparkSession spark = context.sparkSession();
        DeltaLog log = DeltaLog.forTable(spark, new Path(options.apply("path")));
        DeltaOptions given = new DeltaOptions(options, SQLConf.get());
        @SuppressWarnings("unchecked")
        Seq<String> asTheTable = (Seq<String>) (Seq<?>) Nil$.MODULE$;
        WriteIntoDelta write = new WriteIntoDelta(
            log, mode, given, asTheTable, Map$.MODULE$.empty(), rows, Option.empty(), Option.empty(), false);
        log.withNewTransaction(Option.empty(), Option.empty(), transaction -> {
            if (!isCommitted(given, transaction)) {
                var made = write.writeAndReturnCommitData(transaction, spark, Option.empty(), false);
                transaction.commitIfNeeded(made.actions(), operation(asTheTable, given), made.stringTags());
            }
            return BoxedUnit.UNIT;
        });
        // By which Spark forgets what it has cached of the table.
        return log.createRelation(
            log.createRelation$default$1(),
            log.createRelation$default$2(),
            log.createRelation$default$3(),
            log.createRelation$default$4());
    }

    private static boolean isCommitted(DeltaOptions given, OptimisticTransaction transaction) {
        if (given.txnAppId().isEmpty()) {
            return false;
        }
        return lastVersion(given.txnAppId().get(), transaction) >= (Long) (Object) given.txnVersion().get();
    }

    /** The version that an application committed last; -1: none. */
    private static long lastVersion(String application, OptimisticTransaction transaction) {
        var checksum = transaction.snapshot().checksumOpt();
        if (checksum.isEmpty() || checksum.get().setTransactions().isEmpty()) {
            return transaction.txnVersion(application);
        }
        // As txnVersion does: where the application commits meanwhile, this commit fails.
        transaction.readTxn().addOne(application);
        Iterator<SetTransaction> known = checksum.get().setTransactions().get().iterator();
        while (known.hasNext()) {
            SetTransaction one = known.next();
            if (one.appId().equals(application)) {
                return one.version();
            }
        }
        return -1;
    }

    private static DeltaOperations.Operation operation(Seq<String> partitionedBy, DeltaOptions given) {
        return new DeltaOperations.Write(
            SaveMode.Append,
            Option.apply(partitionedBy),
            Option.empty(),
            given.userMetadata(),
            Option.empty(),
            Option.empty(),
            Option.empty(),
            Option.empty(),
            Option.empty());
    }
}
